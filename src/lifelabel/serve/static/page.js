"use strict";

const TOP = 200; // labels that are requested for a picture
const OTHERS = 10; // labels below the threshold that are listed
const MAPS = 20; // the most probable labels that have maps
const RELATED = 3;
const MIN_RELATED = 0.1;
const PARALLEL = 3; // requests at a time
const MAX_WAIT_SECONDS = 10;

const byId = (id) => document.getElementById(id);
const cards = new Set();
const waiting = [];
let running = 0;
let model = null;
let related = new Map(); // class -> Map(other class -> P(other | class))

// The settings

function thresholdOf(label) {
  return byId("own").checked ? label.threshold : Number(byId("threshold").value);
}

function renderAll() {
  byId("value").textContent = Number(byId("threshold").value).toFixed(2);
  for (const card of cards) card.render();
}

for (const id of ["own", "one"]) byId(id).addEventListener("change", renderAll);
byId("threshold").addEventListener("input", () => {
  byId("one").checked = true;
  renderAll();
});
byId("task").addEventListener("change", () => {
  for (const card of cards) card.request();
});
byId("clear").addEventListener("click", () => {
  for (const card of [...cards]) card.remove();
  byId("files").focus();
});

// Requests

async function answerOf(file, query, signal) {
  const body = new FormData();
  body.append("files", file, file.name || "pasted image");
  for (;;) {
    const response = await fetch(`predict?${new URLSearchParams(query)}`, { method: "POST", body, signal });
    if (response.status === 429) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      await new Promise((done) => setTimeout(done, 1000 * Math.min(seconds, MAX_WAIT_SECONDS)));
      signal.throwIfAborted();
      continue;
    }
    const answer = await response.json().catch(() => ({})); // a proxy may answer with a page of its own
    const result = answer.results?.[0];
    if (!result || result.error) throw new Error(result?.error || answer.error || `status ${response.status}`);
    return result.labels;
  }
}

function enqueue(job) {
  waiting.push(job);
  next();
}

async function next() {
  if (running >= PARALLEL || !waiting.length) return;
  running += 1;
  try {
    await waiting.shift()();
  } finally {
    running -= 1;
    report();
    next();
  }
}

function report() {
  const all = [...cards];
  const done = all.filter((card) => card.labels || card.error).length;
  byId("status").textContent = all.length ? `${done} of ${all.length} ${all.length === 1 ? "picture" : "pictures"} done` : "";
  byId("clear").hidden = byId("legend").hidden = !all.length;
}

// A picture with its labels

class Card {
  constructor(file) {
    this.file = file;
    this.item = byId("card").content.firstElementChild.cloneNode(true);
    this.find("h2").textContent = file.name || "pasted image";
    this.image = this.find("img");
    this.image.alt = `Photograph ${file.name || "from the clipboard"}`;
    this.image.addEventListener("error", () => {
      this.image.hidden = true;
    });
    this.url = URL.createObjectURL(file);
    this.image.src = this.url;
    this.find(".remove").addEventListener("click", () => {
      const neighbour = this.item.nextElementSibling || this.item.previousElementSibling;
      this.remove();
      (neighbour?.querySelector(".remove") || byId("files")).focus();
    });
    this.find(".remove").setAttribute("aria-label", `Remove ${file.name || "pasted image"}`);
    cards.add(this);
    byId("cards").append(this.item);
    this.request();
  }

  find(selector) {
    return this.item.querySelector(selector);
  }

  remove() {
    this.requests.abort();
    cards.delete(this);
    this.item.remove();
    URL.revokeObjectURL(this.url);
    report();
  }

  request() {
    this.requests?.abort();
    this.requests = new AbortController();
    this.labels = this.maps = this.error = this.shown = null;
    const task = byId("task").value;
    const query = { top: TOP, ...(task && { task }) };
    this.query = query;
    this.render();
    report();
    enqueue(async () => {
      if (!cards.has(this) || this.query !== query) return; // removed, or another task was chosen meanwhile
      try {
        if (model && this.file.size > model.limits.max_bytes - 10000) {
          throw new Error(`larger than ${Math.floor(model.limits.max_bytes / 1e6)} MB`);
        }
        const labels = await answerOf(this.file, query, this.requests.signal);
        if (this.query === query) this.labels = labels;
      } catch (error) {
        if (this.query === query) this.error = error instanceof TypeError ? "the server cannot be reached" : error.message;
      }
      this.render();
    });
  }

  render() {
    const article = this.find("article");
    article.classList.toggle("error", Boolean(this.error));
    const labels = this.labels || [];
    const good = labels.filter((label) => label.probability >= thresholdOf(label));
    const others = labels.filter((label) => label.probability < thresholdOf(label)).slice(0, OTHERS);
    const empty = this.labels && !good.length ? "no label reaches its threshold" : "";
    this.find(".message").textContent = this.error || (this.labels ? empty : "waiting for the server …");
    this.find(".labels").replaceChildren(...good.map((label) => this.row(label, good)));
    this.find("details").hidden = !others.length;
    this.find("summary").textContent = `${others.length} less probable`;
    this.find(".others").replaceChildren(...others.map((label) => this.row(label, [])));
    this.drawMap();
  }

  row(label, good) {
    const row = byId("label").content.firstElementChild.cloneNode(true);
    const find = (selector) => row.querySelector(selector);
    const text = label.probability.toFixed(2);
    find(".name").textContent = label.name;
    find(".number").textContent = text;
    const bar = find(".bar");
    bar.setAttribute("aria-label", `Probability of ${label.name}`);
    bar.setAttribute("aria-valuenow", label.probability);
    bar.setAttribute("aria-valuetext", `${text}, threshold ${thresholdOf(label).toFixed(2)}`);
    find(".fill").style.width = `${100 * label.probability}%`;
    find(".mark").style.left = `${100 * thresholdOf(label)}%`;
    find(".related").textContent = supporters(label, good);
    const where = find(".where");
    where.hidden = !model?.maps || this.labels.indexOf(label) >= MAPS;
    where.setAttribute("aria-label", `Where is the evidence for ${label.name}?`);
    where.setAttribute("aria-pressed", this.shown === label.name);
    where.dataset.name = label.name;
    where.addEventListener("click", () => this.toggle(label.name));
    return row;
  }

  show(name) {
    this.shown = name;
    for (const button of this.item.querySelectorAll(".where")) {
      button.setAttribute("aria-pressed", button.dataset.name === this.shown);
    }
    this.drawMap();
  }

  async toggle(name) {
    this.show(this.shown === name ? null : name);
    if (!this.shown || this.maps) return;
    const query = this.query;
    try {
      const labels = await answerOf(this.file, { ...query, top: MAPS, maps: true }, this.requests.signal);
      if (this.query !== query) return;
      this.maps = new Map(labels.map((label) => [label.name, label.map]));
    } catch (error) {
      if (this.query !== query) return;
      this.find(".message").textContent = error.message;
      this.show(null);
    }
    this.drawMap();
  }

  drawMap() {
    const map = this.shown && this.maps?.get(this.shown);
    const canvas = this.find("canvas");
    canvas.hidden = !map || this.image.hidden;
    if (canvas.hidden) return;
    const [height, width] = [map.length, map[0].length];
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(width, height);
    map.flat().forEach((value, place) => {
      pixels.data[4 * place + 3] = Math.round(190 * (1 - Math.sqrt(value))); // black, transparent where the evidence is
    });
    context.putImageData(pixels, 0, 0);
    canvas.style.width = `${this.image.clientWidth}px`;
    canvas.style.height = `${this.image.clientHeight}px`;
  }
}

function supporters(label, good) {
  const found = good
    .filter((other) => other.name !== label.name)
    .map((other) => [other.name, related.get(other.name)?.get(label.name) || 0])
    .filter(([, share]) => share >= MIN_RELATED)
    .sort((a, b) => b[1] - a[1])
    .slice(0, RELATED);
  if (!found.length) return "";
  return `related here: ${found.map(([name, share]) => `${name} (${Math.round(100 * share)} %)`).join(", ")}`;
}

// Files: chosen, dropped, pasted

function add(files) {
  for (const file of files) new Card(file);
}

byId("files").addEventListener("change", (event) => {
  add(event.target.files);
  event.target.value = "";
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") add(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => add(event.clipboardData.files));
window.addEventListener("resize", () => {
  for (const card of cards) card.drawMap();
});

// The model

async function start() {
  try {
    const [facts, classes] = await Promise.all(["model", "classes"].map(async (path) => (await fetch(path)).json()));
    model = facts;
    related = new Map(classes.classes.map((each) => [each.name, new Map(each.related.map((r) => [r.name, r.probability]))]));
    const tasks = `${model.tasks} ${model.tasks === 1 ? "task" : "tasks"}`;
    byId("about").textContent = `${model.label}, ${model.backbone}: ${model.classes} classes, learned in ${tasks}`;
    byId("report").hidden = !model.report;
    for (const task of model.kept_tasks.filter((each) => each < model.tasks)) {
      byId("task").add(new Option(`after task ${task}`, task));
    }
    byId("task-choice").hidden = byId("task").length < 2;
    renderAll();
  } catch {
    byId("status").textContent = "the server cannot be reached";
  }
}

start();
