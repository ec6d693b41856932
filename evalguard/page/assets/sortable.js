// Tables of class "sortable": a button in each head sorts the rows by the data-key of its column's
// cells, else by their text; a column of numbers by their values, what has none last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain sort";
    button.append(...head.childNodes);
    const arrow = document.createElement("span");
    arrow.setAttribute("aria-hidden", "true");
    button.append(arrow);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const largestFirst = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const descending = before === "none" ? largestFirst : before === "ascending";
      const sign = descending ? -1 : 1;
      const rows = [...body.rows].map((row, place) => {
        const cell = row.cells[column];
        return { row, place, key: cell.dataset.key ?? cell.textContent.trim() };
      });
      if (rows.every(({ key }) => !Number.isNaN(Number(key)))) {
        for (const one of rows) if (one.key !== "") one.key = Number(one.key);
      }
      rows.sort((a, b) => {
        if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "") || a.place - b.place;
        return a.key === b.key ? a.place - b.place : (a.key < b.key ? -sign : sign);
      });
      body.append(...rows.map(({ row }) => row));
      for (const other of heads) {
        other.setAttribute("aria-sort", "none");
        other.querySelector("button span").textContent = "";
      }
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      arrow.textContent = descending ? " ▼" : " ▲";
    });
  });
}
