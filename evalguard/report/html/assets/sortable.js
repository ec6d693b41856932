// Tables of class "sortable": a button in each head sorts the rows by the data-order of its column.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const numeric = head.classList.contains("number");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.append(...head.childNodes);
    const arrow = document.createElement("span");
    arrow.setAttribute("aria-hidden", "true");
    button.append(arrow);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "none"
        ? numeric : head.getAttribute("aria-sort") === "ascending";
      const sign = descending ? -1 : 1;
      const rows = [...body.rows].map((row, place) => {
        const order = row.cells[column].dataset.order;
        return { row, place, order: numeric && order !== "" ? Number(order) : order };
      });
      rows.sort((a, b) => {
        if (a.order === "" || b.order === "") return (a.order === "") - (b.order === "") || a.place - b.place;
        return a.order === b.order ? a.place - b.place : (a.order < b.order ? -sign : sign);
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
