// Without it the page says the same: tables cannot be sorted, lines not picked out, nothing copied.
"use strict";

// A table is sorted by a heading: down, up, and as it was.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const [first, second] = column ? ["descending", "ascending"] : ["ascending", "descending"];
      const before = heading.getAttribute("aria-sort");
      const order = before === first ? second : before === second ? null : first;
      for (const each of headings) each.removeAttribute("aria-sort");
      if (order) heading.setAttribute("aria-sort", order);
      body.append(...(order ? sorted(original, column, order === "ascending") : original));
    });
  });
}

function sorted(rows, column, up) {
  const keys = new Map(rows.map((row) => [row, keyOf(row.cells[column].textContent.trim())]));
  const missing = (key) => key === "" || key === "-";
  return [...rows].sort((one, other) => {
    const [a, b] = [keys.get(one), keys.get(other)];
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "number" && typeof b === "number"
      ? (a > b) - (a < b)
      : String(a).localeCompare(String(b), "en", { numeric: true });
    return up ? order : -order;
  });
}

// A cell begins with its number, or with "never", which is later than all.
function keyOf(text) {
  if (text.startsWith("never")) return Infinity;
  const number = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?(?=$|\s|;)/i.exec(text);
  return number ? Number(number[0].replaceAll(",", "")) : text;
}

// A rule is picked out in all curves: while it is pointed at, or until pressed again.
const rules = [...document.querySelectorAll(".looks span")].map((label) => {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.rule = label.dataset.rule;
  button.setAttribute("aria-pressed", "false");
  button.append(...label.childNodes);
  label.replaceWith(button);
  return button;
});
let pointed = null;

function light() {
  const lit = rules.filter((rule) => rule === pointed || rule.getAttribute("aria-pressed") === "true");
  const views = document.querySelector(".views");
  views.classList.toggle("lighting", lit.length > 0);
  for (const rule of rules) rule.classList.toggle("lit", lit.includes(rule));
  for (const line of views.querySelectorAll(".line, .band")) {
    line.classList.toggle("lit", lit.some((rule) => rule.dataset.rule === line.dataset.rule));
  }
}

function picksOut(element, rule) {
  element.addEventListener("click", () => {
    rule.setAttribute("aria-pressed", String(rule.getAttribute("aria-pressed") !== "true"));
    pointed = null;
    light();
  });
  element.addEventListener("pointerenter", () => { pointed = rule; light(); });
  element.addEventListener("pointerleave", () => { pointed = null; light(); });
}

for (const rule of rules) {
  picksOut(rule, rule);
  // So does its line in a plot, near which the rule's name is shown.
  for (const line of document.querySelectorAll(`.line[data-rule="${rule.dataset.rule}"]`)) {
    const near = line.querySelector("path").cloneNode();
    near.removeAttribute("style");
    near.setAttribute("class", "near");
    const name = document.createElementNS(line.namespaceURI, "title");
    name.textContent = rule.textContent;
    near.append(name);
    line.append(near);
    picksOut(line, rule);
  }
}

// What is folded is printed too.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

// A command is copied; a browser that does not let pages do so has it selected.
for (const command of document.querySelectorAll(".command")) {
  const [code, button] = [command.querySelector("code"), document.createElement("button")];
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-describedby", code.id);
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  command.append(button);
}
