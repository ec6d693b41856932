// The page: controls, grid and drill-down put together.
async function start() {
  const tasks = await readBlock("rows");
  if (tasks === null) return;
  for (const task of tasks) {
    let id = 0;
    task.ids = task.steps.map((step) => (id += step));
  }
  const texts = tasks.map((task, number) => new Texts(number, task.ids.length, task.piece));
  const by = (id) => document.getElementById(id);
  const chosen = tasks.flatMap((task, number) => {
    const metrics = task.metrics.length ? task.metrics
      : [{ label: "documents", unit: "score", drift: null, base: null, candidate: null }];
    return metrics.map((metric) => ({ number, metric, label: `${task.task} · ${metric.label}` }));
  });
  by("metric").append(...chosen.map(({ label }, place) => new Option(label, String(place))));
  by("metric").value = String(mostMoved(chosen));

  let now, rows, searches = 0;
  const drilldown = new Drilldown(by("document"));
  const openPlace = (place) => drilldown.open(
    tasks[now.number], now.metric, texts[now.number], place,
    (step) => grid.choose(grid.active + step, true), (step) => grid.reaches(step),
  );
  by("document").addEventListener("close", () => {
    // The browser goes back to where the first one was opened; the reader may be rows further.
    if (document.activeElement?.closest("a.open-document") === null) grid.choose(grid.active, false);
  });
  const grid = new Grid(by("grid-body"), by("grid-head"), () => texts[now.number], openPlace);

  function show() {
    const [shown, all] = [rows.order.length, rows.task.ids.length];
    by("grid-empty").hidden = shown > 0;
    by("grid").hidden = shown === 0; // before its rows are drawn: what is hidden has no height
    grid.show(rows);
    gridHead(by("grid-head"), rows, (key) => { rows.sortBy(key); show(); });
    by("count").textContent = `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} documents`;
  }

  async function search() {
    const own = ++searches;
    const asked = by("search").value.trim().toLowerCase();
    let wanted = null;
    if (/^#\d+$/.test(asked)) {
      const place = rows.placeOf(Number(asked.slice(1)));
      wanted = (other) => other === place;
    } else if (asked) {
      by("count").textContent = "Searching …";
      const lower = await texts[now.number].lower();
      wanted = (place) => lower[place].includes(asked);
    }
    if (own !== searches) return; // something else was asked for in the meantime
    rows.wanted = wanted;
    rows.filter = by("filter").value;
    rows.arrange();
    show();
  }

  function choose() {
    now = chosen[Number(by("metric").value)];
    rows = new Rows(tasks[now.number], now.metric);
    return search();
  }

  let waiting;
  by("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 120);
  });
  by("filter").addEventListener("change", search);
  by("metric").addEventListener("change", choose);
  for (const link of document.querySelectorAll("a.open-document")) {
    link.addEventListener("click", async (event) => {
      const number = tasks.findIndex(({ task }) => task === link.dataset.task);
      const place = number < 0 ? -1 : tasks[number].ids.indexOf(Number(link.dataset.document));
      if (place < 0) return;
      event.preventDefault();
      if (now.number !== number) {
        by("metric").value = String(chosen.findIndex((one) => one.number === number));
        await choose();
      }
      const row = rows.order.indexOf(place);
      if (row >= 0) grid.active = row;
      await openPlace(place);
    });
  }
  by("controls").hidden = false;
  by("grid-box").hidden = false;
  await choose();
  document.documentElement.dataset.ready = "";
}

// The metric whose documents add up to the largest drift.
function mostMoved(chosen) {
  const sizes = chosen.map(({ metric }) => Math.abs((metric.drift ?? []).reduce((sum, value) => sum + (value ?? 0), 0)));
  return Math.max(sizes.indexOf(Math.max(...sizes)), 0);
}

start();
