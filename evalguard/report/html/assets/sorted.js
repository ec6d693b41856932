// Tables whose rows a click on a column's head sorts: by data-key of the cells, else by their text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numbers = body.rows.length > 0 && typeof keyOf(body.rows[0], column) === "number";
      const before = head.getAttribute("aria-sort");
      const down = before === null ? numbers && column > 0 : before === "ascending";
      const sign = down ? -1 : 1;
      const compare = (one, other) => {
        const [a, b] = [keyOf(one, column), keyOf(other, column)];
        return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
      };
      body.append(...[...body.rows].sort(compare));
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
for (const box of document.querySelectorAll("input.only-beyond")) {
  const rows = document.getElementById(box.dataset.table).tBodies[0].rows;
  const show = () => {
    for (const row of rows) row.hidden = box.checked && !row.classList.contains("beyond");
  };
  box.closest("label").hidden = false;
  box.addEventListener("change", show);
  show();
}
