// Drill-down: everything the page has of one document. Text only ever goes in as text.
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function textBox(title, text) {
  const box = element("pre", "block text", text);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", title);
  box.dir = "auto";
  return [element("h3", "", title), box];
}

class Drilldown {
  constructor(dialog) {
    this.dialog = dialog;
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // beside its content
    });
  }

  // `step`: goes on by so many rows, where `steps` says that there are any.
  async open(task, metric, texts, place, step, steps) {
    const { prompt, target, requests } = await texts.at(place);
    const focused = this.dialog.contains(document.activeElement) ? document.activeElement.textContent : "";
    const id = task.ids[place];
    const title = element("h2", "", `Document ${id}, ${task.task}`);
    title.id = "document-title";
    const buttons = element("p", "buttons");
    for (const [name, by] of [["Previous", -1], ["Next", 1]]) {
      const button = element("button", "", name);
      button.type = "button";
      button.disabled = !steps(by);
      button.addEventListener("click", () => step(by));
      buttons.append(button);
    }
    const close = element("button", "", "Close");
    close.type = "button";
    close.addEventListener("click", () => this.dialog.close());
    buttons.append(close);
    const content = element("div", "document", title, buttons, scoreList(task, metric, place));
    content.append(...textBox("Prompt", prompt));
    if (target) content.append(...textBox("Target", target));
    content.append(...answers(requests, targetOf(target, requests)));
    this.dialog.replaceChildren(content);
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    // Who goes on by keyboard finds the same button under his finger.
    const again = [...buttons.children].find((one) => one.textContent === focused);
    (again && !again.disabled ? again : close).focus();
  }
}

function scoreList(task, metric, place) {
  const list = element("dl", "facts");
  const digits = digitsOf(metric);
  const add = (name, text) => list.append(element("dt", "", name), element("dd", "", text));
  if (metric.drift) add(`Adds to the drift of ${metric.label}`, `${signedText(metric.drift[place], digits.drift)} sigma`);
  if (metric.base) add(`Base ${metric.unit}`, numberText(metric.base[place], digits.base));
  if (metric.candidate) add(`Candidate ${metric.unit}`, numberText(metric.candidate[place], digits.candidate));
  if (task.kl) add("Mean KL", numberText(task.kl[place], digits.kl));
  return list;
}

// Which of several options is the target: the one that says it, else the one of its number, which
// lm-eval counts from 0; -1 where that is not known.
function targetOf(target, requests) {
  const said = requests.map(({ continuation }) => continuation?.trim());
  const alike = said.filter((text) => text === target?.trim()).length;
  if (requests.length < 2 || alike > 1) return -1;
  if (alike === 1) return said.indexOf(target.trim());
  return /^\d+$/.test(target) && Number(target) < requests.length ? Number(target) : -1;
}

function answers(requests, right) {
  const parts = [];
  if (requests.length) parts.push(element("h3", "", "Answers"));
  const likeliest = ["base", "candidate"].map((side) => best(requests, side));
  requests.forEach(({ continuation, base, candidate, tokens }, number) => {
    if (requests.length > 1) parts.push(element("h4", "", `Option ${number + 1}${number === right ? ", the target" : ""}`));
    if (continuation) parts.push(textBox(`Continuation ${number + 1}`, continuation)[1]);
    const both = element("dl", "facts");
    [["Base", base, likeliest[0]], ["Candidate", candidate, likeliest[1]]].forEach(([name, said, likely]) => {
      both.append(element("dt", "", name), element("dd", "", said === null ? "–" : sideText(said, likely === number)));
    });
    parts.push(both);
    for (const [name, said] of [["Base's answer", base], ["Candidate's answer", candidate]]) {
      if (said !== null && said[2] !== null) parts.push(...textBox(name, said[2]));
    }
    if (tokens) parts.push(tokenTable(tokens));
  });
  return parts;
}

function best(requests, side) {
  if (requests.length < 2) return -1;
  const number = (found) => (typeof found === "number" ? found : -Infinity); // or "-inf", "nan"
  const found = requests.map((request) => number(request[side]?.[0]));
  return found.indexOf(Math.max(...found));
}

function sideText([loglikelihood, greedy], likeliest) {
  const parts = [];
  if (loglikelihood !== null) {
    const text = typeof loglikelihood === "number" ? loglikelihood.toFixed(2) : loglikelihood;
    parts.push(`log-likelihood ${text}`);
  }
  if (likeliest) parts.push("the likeliest option");
  if (greedy !== null) parts.push(greedy ? "greedy decoding says the same" : "greedy decoding says something else");
  return parts.join(", ") || "generated";
}
