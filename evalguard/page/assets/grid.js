// Grid: of all rows only those in sight are elements of the page.
const ROW = 34; // height of a row, as in documents.css
const TALLEST = 8e6; // browsers do not draw elements much taller than this
const SPARE = 6; // rows drawn above and below those in sight

class Grid {
  constructor(body, head, texts, open) {
    Object.assign(this, { body, head, texts, open });
    this.space = document.createElement("div");
    this.space.className = "grid-space";
    this.space.setAttribute("role", "presentation");
    body.append(this.space);
    this.drawn = new Map();
    this.active = 0;
    body.addEventListener("scroll", () => this.draw(), { passive: true });
    body.addEventListener("keydown", (event) => this.key(event));
    body.addEventListener("click", (event) => {
      const row = event.target.closest(".grid-row");
      if (row) this.choose(Number(row.dataset.place), true);
    });
    body.addEventListener("focusin", (event) => {
      const row = event.target.closest(".grid-row.parked");
      // Later: the browser itself scrolls to where the row is now.
      if (row) requestAnimationFrame(() => this.choose(Number(row.dataset.place), false));
    });
    addEventListener("resize", () => this.draw());
  }

  // Whether there is a row so many further.
  reaches(step) {
    return this.active + step >= 0 && this.active + step < this.rows.order.length;
  }

  // Shows rows from the top.
  show(rows) {
    this.rows = rows;
    this.active = 0;
    this.drawn.clear();
    this.space.replaceChildren();
    const grid = this.body.parentElement;
    grid.setAttribute("aria-rowcount", String(rows.order.length + 1));
    grid.setAttribute("aria-colcount", String(rows.columns.length));
    grid.dataset.columns = rows.columns.map(({ key }) => key).join(" ");
    this.space.style.height = `${Math.min(rows.order.length * ROW, TALLEST)}px`;
    this.body.scrollTop = 0;
    this.draw();
  }

  get inSight() {
    return Math.max(Math.floor(this.body.clientHeight / ROW), 1);
  }

  // The first row in sight; where all rows are taller than can be drawn, by share of the way.
  get first() {
    const count = this.rows.order.length;
    if (count * ROW <= TALLEST) return Math.floor(this.body.scrollTop / ROW);
    const way = this.body.scrollTop / Math.max(TALLEST - this.body.clientHeight, 1);
    return Math.round(way * Math.max(count - this.inSight, 0));
  }

  // The first row that is in sight as a whole.
  get firstWhole() {
    const tall = this.rows.order.length * ROW > TALLEST;
    return tall ? this.first : Math.ceil(this.body.scrollTop / ROW);
  }

  scrollTo(first) {
    const count = this.rows.order.length;
    if (count * ROW <= TALLEST) this.body.scrollTop = first * ROW;
    else {
      const way = first / Math.max(count - this.inSight, 1);
      this.body.scrollTop = way * (TALLEST - this.body.clientHeight);
    }
  }

  draw() {
    if (!this.rows) return;
    const count = this.rows.order.length;
    const first = this.first;
    const from = Math.max(first - SPARE, 0);
    const to = Math.min(first + this.inSight + SPARE + 1, count);
    for (const [place, row] of this.drawn) {
      if ((place < from || place >= to) && place !== this.active) {
        row.remove();
        this.drawn.delete(place);
      }
    }
    const tall = count * ROW > TALLEST;
    const top = tall ? this.body.scrollTop - (first - from) * ROW : from * ROW;
    for (let place = from; place < to; place++) {
      const row = this.drawn.get(place) ?? this.made(place);
      row.style.transform = `translateY(${top + (place - from) * ROW}px)`;
      row.classList.remove("parked");
    }
    if (count) this.park(from, to, top);
  }

  // The row that the keyboard is at stays an element when it is scrolled away, just out of sight:
  // it keeps the focus, and Tab finds it again.
  park(from, to, top) {
    if (this.active >= from && this.active < to) return;
    const row = this.drawn.get(this.active) ?? this.made(this.active);
    row.classList.add("parked");
    const beside = this.active < from ? top - ROW : top + (to - from) * ROW;
    row.style.transform = `translateY(${beside}px)`;
  }

  made(place) {
    const document_ = this.rows.order[place];
    const row = document.createElement("div");
    row.className = "grid-row";
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", String(place + 2));
    row.dataset.place = String(place);
    row.tabIndex = place === this.active ? 0 : -1;
    for (const { key } of this.rows.columns) row.append(this.cell(key, document_));
    this.space.append(row);
    this.drawn.set(place, row);
    return row;
  }

  cell(key, document_) {
    const cell = document.createElement("div");
    cell.className = `cell ${key}`;
    cell.setAttribute("role", "gridcell");
    if (key === "text") {
      const text = document.createElement("bdi");
      cell.append(text);
      this.texts().at(document_).then(({ prompt }) => {
        text.textContent = prompt.slice(-160);
        cell.classList.toggle("cut", text.offsetWidth > cell.clientWidth);
      });
    } else {
      const value = this.rows.values[key][document_];
      const digits = this.rows.digits[key];
      cell.textContent = key === "drift" ? signedText(value, digits) : numberText(value, digits);
      if (key === "drift" && value) cell.classList.add(value > 0 ? "worse" : "better");
    }
    return cell;
  }

  key(event) {
    const last = this.rows.order.length - 1;
    const page = this.inSight - 1;
    const to = {
      ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + page,
      PageUp: this.active - page, Home: 0, End: last,
    }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(this.active, true);
    else if (to === undefined) return;
    else this.choose(Math.min(Math.max(to, 0), Math.max(last, 0)), false);
    event.preventDefault();
  }

  // Moves the focus to a row, and opens it.
  choose(place, open) {
    if (place < 0 || place > this.rows.order.length - 1) return;
    const before = this.drawn.get(this.active);
    if (before) before.tabIndex = -1;
    this.active = place;
    if (place < this.firstWhole) this.scrollTo(place);
    else if (place >= this.first + this.inSight) this.scrollTo(place - this.inSight + 1);
    this.draw();
    const row = this.drawn.get(place);
    if (row) {
      row.tabIndex = 0;
      row.focus({ preventScroll: true });
      row.scrollIntoView({ block: "nearest", inline: "nearest" }); // the table may be taller than the window
    }
    if (open) this.open(this.rows.order[place]);
  }
}

// The head of the grid: a button per column that can be sorted.
function gridHead(head, rows, sort) {
  head.replaceChildren(...rows.columns.map(({ key, name, number }) => {
    const cell = document.createElement("div");
    cell.className = `cell ${key}`;
    cell.setAttribute("role", "columnheader");
    if (!number) {
      cell.textContent = name;
      return cell;
    }
    const sorted = rows.sortedBy === key;
    cell.setAttribute("aria-sort", !sorted ? "none" : rows.descending ? "descending" : "ascending");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.dataset.key = key;
    button.textContent = name;
    const arrow = document.createElement("span");
    arrow.setAttribute("aria-hidden", "true");
    arrow.textContent = sorted ? (rows.descending ? " ▼" : " ▲") : "";
    button.append(arrow);
    button.addEventListener("click", () => {
      sort(key);
      head.querySelector(`[data-key="${key}"]`).focus();
    });
    cell.append(button);
    return cell;
  }));
}
