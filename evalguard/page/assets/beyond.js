// A box "only-beyond" hides the rows of its table that are not of class "beyond".
for (const box of document.querySelectorAll("input.only-beyond")) {
  const rows = document.getElementById(box.dataset.table).tBodies[0].rows;
  const show = () => {
    for (const row of rows) row.hidden = box.checked && !row.classList.contains("beyond");
  };
  box.closest("label").hidden = false;
  box.addEventListener("change", show);
  show();
}
