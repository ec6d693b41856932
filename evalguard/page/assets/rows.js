// Rows: which documents are shown, and in which order; no drawing.
const COLUMNS = [
  { key: "id", name: "Document", number: true },
  { key: "drift", name: "Sigma it adds", number: true },
  { key: "base", name: "Base", number: true },
  { key: "candidate", name: "Candidate", number: true },
  { key: "kl", name: "Mean KL", number: true },
  { key: "text", name: "Prompt, its end", number: false },
];

// Significant digits that document_rows.py leaves each column; 0 where all are whole numbers.
const DIGITS = { id: 0, drift: 3, base: 5, candidate: 5, kl: 2 };

function digitsOf(values) {
  const whole = (column) => (column ?? []).every((value) => value === null || Number.isInteger(value));
  const counts = whole(values.base) && whole(values.candidate);
  return { ...DIGITS, ...(counts ? { base: 0, candidate: 0 } : {}) };
}

class Rows {
  constructor(task, metric) {
    this.task = task;
    this.unit = metric.unit;
    this.values = {
      id: task.ids, drift: metric.drift, base: metric.base, candidate: metric.candidate, kl: task.kl,
    };
    this.digits = digitsOf(this.values);
    this.order = task.ids.map((_, place) => place);
    // What moved most comes first: where no score did, by what is beneath the scores.
    this.sortedBy = metric.drift?.some(Boolean) ? "drift" : task.kl ? "kl" : "id";
    this.descending = this.sortedBy !== "id";
    this.filter = "all";
    this.wanted = null;
  }

  get columns() {
    return COLUMNS.filter(({ key }) => key === "text" || this.values[key]).map((column) => {
      const scored = column.key === "base" || column.key === "candidate";
      return scored ? { ...column, name: `${column.name} ${this.unit === "score" ? "score" : "log-lik."}` } : column;
    });
  }

  sortBy(key) {
    this.descending = this.sortedBy === key ? !this.descending : key !== "id";
    this.sortedBy = key;
    this.arrange();
  }

  // `wanted`: a test of a document's place, from the search; null: all.
  arrange() {
    const keep = this.test();
    const places = [];
    for (let place = 0; place < this.task.ids.length; place++) {
      if (keep(place) && (this.wanted === null || this.wanted(place))) places.push(place);
    }
    const values = this.values[this.sortedBy];
    const sign = this.descending ? -1 : 1;
    const least = -Infinity * sign; // a document without a number comes last
    if (values) {
      places.sort((a, b) => {
        const one = values[a] ?? -least, other = values[b] ?? -least;
        return one === other ? a - b : (one < other ? -sign : sign);
      });
    }
    this.order = places;
  }

  test() {
    const { drift, base, candidate } = this.values;
    const { answers } = this.task;
    const moved = (place) => (drift ? drift[place] : (candidate?.[place] ?? 0) - (base?.[place] ?? 0));
    return {
      all: () => true,
      moved: (place) => (moved(place) ?? 0) !== 0,
      worse: (place) => drift !== null && drift[place] > 0,
      better: (place) => drift !== null && drift[place] < 0,
      lost: (place) => base?.[place] === 1 && candidate?.[place] === 0,
      won: (place) => base?.[place] === 0 && candidate?.[place] === 1,
      answers: (place) => answers[place] === 1,
    }[this.filter];
  }

  placeOf(id) {
    return this.task.ids.indexOf(id);
  }
}

// A number with as many digits as the others of its column: 0.05 beside 0.018 is 0.050.
function numberText(value, digits) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1);
  return digits === 0 || size >= 10 ** digits ? String(value) : value.toPrecision(digits);
}

function signedText(value, digits) {
  return value > 0 ? `+${numberText(value, digits)}` : numberText(value, digits);
}
