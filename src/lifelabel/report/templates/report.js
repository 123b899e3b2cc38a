// The inputs of the report: themes, sorting, copying, charts with their controls, and the cards of pictures.
// Text of a run folder is untrusted: it is written with textContent only.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const media = (query) => window.matchMedia(query);
  const reducedMotion = media("(prefers-reduced-motion: reduce)");
  let numberOfInputs = 0;

  // Inputs. Each function returns an element; `set` is called with every new value.

  function labelled(label, input, ...more) {
    input.id = `input-${++numberOfInputs}`;
    return make("span", { className: "control" }, make("label", { htmlFor: input.id, textContent: label }), input, ...more);
  }

  function slider({ label, values: [low, high, step], default: value, play }, set) {
    const digits = step < 1 ? 2 : 0;
    const input = make("input", { type: "range", min: low, max: high, step, value });
    const shown = make("span", { className: "value", ariaHidden: "true" });
    const update = () => { shown.textContent = Number(input.value).toFixed(digits); };
    const changed = () => { update(); set(Number(input.value)); };
    input.addEventListener("input", changed);
    update();
    const more = play && low < high ? [playButton(label, input, changed)] : [];
    return labelled(label, input, shown, ...more);
  }

  function playButton(label, input, changed) {
    const button = make("button", { type: "button", textContent: "▶ Play" });
    let timer = 0;
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      button.textContent = "▶ Play";
    };
    const step = () => {
      if (!input.isConnected) return stop(); // another method has its own slider
      input.stepUp();
      changed();
      if (Number(input.value) >= Number(input.max)) stop();
    };
    button.addEventListener("click", () => {
      if (timer) return stop();
      if (Number(input.value) >= Number(input.max)) {
        input.value = input.min;
        changed();
      }
      timer = setInterval(step, 900);
      button.textContent = "■ Stop";
    });
    input.addEventListener("input", stop);
    const allow = () => {
      if (reducedMotion.matches) stop();
      button.hidden = reducedMotion.matches;
    };
    reducedMotion.addEventListener("change", allow);
    allow();
    return button;
  }

  function choice({ label, values, default: value }, set) {
    const select = make("select", {}, ...values.map(([, text]) => make("option", { textContent: text })));
    select.selectedIndex = values.findIndex(([each]) => each === value);
    select.addEventListener("change", () => set(values[select.selectedIndex][0]));
    return labelled(label, select);
  }

  function checks({ label, values, default: on }, set) {
    const boxes = values.map(([value]) => make("input", { type: "checkbox", checked: on.includes(value) }));
    const chosen = () => values.filter((_, k) => boxes[k].checked).map(([value]) => value);
    const labels = values.map(([, text], k) => make("label", {}, boxes[k], text));
    const field = make("fieldset", {}, make("legend", { textContent: label }), ...labels);
    field.addEventListener("change", () => set(chosen()));
    return field;
  }

  const inputs = { slider, choice, checks };

  // Charts: drawn when they come into view, and again when the colours change.

  const configs = data("configs");
  const prefersDark = media("(prefers-color-scheme: dark)");
  let printing = false;
  const isDark = () => {
    const { theme } = document.documentElement.dataset;
    return !printing && (theme ? theme === "dark" : prefersDark.matches);
  };

  class Chart {
    constructor(figure) {
      const { spec, controls } = data(`${figure.id}-data`);
      this.plot = figure.querySelector(".plot");
      this.spec = spec;
      this.values = {};
      const box = figure.querySelector(".controls");
      box.append(...controls.map((control) => inputs[control.kind](control, (value) => this.set(control.signal, value))));
    }

    set(signal, value) {
      this.values[signal] = value;
      this.view?.signal(signal, value).runAsync();
    }

    async draw() {
      const dark = isDark();
      if (this.dark === dark) return;
      this.dark = dark;
      const values = { ...this.values };
      const params = this.spec.params?.map((p) => (p.name in values ? { ...p, value: values[p.name] } : p));
      const target = make("div", { ariaHidden: "true" }); // the plot has the text alternative
      const options = {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
        config: configs[dark ? "dark" : "light"], tooltip: { theme: dark ? "dark" : "light" },
      };
      this.finalize?.();
      this.plot.replaceChildren(target); // in the page before it is drawn: the width is that of its container
      try {
        const result = await vegaEmbed(target, params ? { ...this.spec, params } : this.spec, options);
        if (target.parentElement !== this.plot) return result.finalize(); // it was hidden or drawn again meanwhile
        this.view = result.view;
        this.finalize = result.finalize;
        for (const [signal, value] of Object.entries(this.values)) {
          if (values[signal] !== value) this.set(signal, value); // an input changed meanwhile
        }
      } catch (error) {
        target.textContent = "This chart cannot be drawn.";
        console.error(error);
      }
      this.plot.classList.add("drawn");
    }

    // A hidden chart has no width. It is drawn again when it comes into view.
    erase() {
      this.finalize?.();
      this.view = this.finalize = this.dark = undefined;
      this.plot.replaceChildren();
      this.plot.classList.remove("drawn");
    }
  }

  const charts = new Map();
  function show(figure) {
    if (!charts.has(figure)) charts.set(figure, new Chart(figure));
    return charts.get(figure).draw();
  }
  const redraw = () => charts.forEach((chart, figure) => figure.offsetParent && chart.draw());

  const observer = new IntersectionObserver((entries) => {
    // a figure can be hidden between the observation and this call: it would be drawn without a width
    for (const { isIntersecting, target } of entries) if (isIntersecting && target.offsetParent) show(target);
  }, { rootMargin: "300px" });
  all("figure.chart").forEach((figure) => observer.observe(figure));

  window.addEventListener("beforeprint", () => {
    printing = true;
    all("figure.chart").filter((figure) => figure.offsetParent).forEach(show);
    redraw();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    redraw();
  });

  const theme = document.getElementById("theme");
  const coloursChanged = () => {
    theme.textContent = isDark() ? "Light colours" : "Dark colours";
    redraw();
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    coloursChanged();
  });
  prefersDark.addEventListener("change", coloursChanged);
  coloursChanged();

  // The method of the sections that show one run: a choice in one section is made in all that have the method.

  function chooseMethod(method) {
    for (const section of all("section")) {
      const select = section.querySelector(".method-choice");
      if (!select || ![...select.options].some((option) => option.value === method)) continue;
      select.value = method;
      for (const panel of all(".panel", section)) {
        panel.hidden = panel.dataset.method !== method;
        if (panel.hidden) all("figure", panel).forEach((figure) => charts.get(figure)?.erase());
      }
    }
  }
  for (const select of all(".method-choice")) select.addEventListener("change", () => chooseMethod(select.value));

  // Tables: a row and its line of forgetting are one <tbody>.

  function sort(table, column, head) {
    const isNumber = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : isNumber;
    const text = (body) => body.rows[0].cells[column].textContent;
    const number = (body) => parseFloat(text(body).replaceAll(",", ""));
    const sign = descending ? -1 : 1;
    const compare = (a, b) => {
      if (!isNumber) return sign * text(a).localeCompare(text(b), "en", { numeric: true });
      const [x, y] = [number(a), number(b)];
      return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y); // unknown values are last
    };
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    table.append(...[...table.tBodies].sort(compare));
  }
  for (const table of all("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => sort(table, column, head));
    });
  }

  // Copying. Without the clipboard API, or without the permission, a selection is copied.

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = make("textarea", { value: text });
      const focused = document.activeElement;
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      focused?.focus();
      return copied;
    }
  }
  const texts = data("copies");
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const name = button.dataset.copy;
      const copied = await copy(texts[name]);
      button.parentElement.querySelector("[role=status]").textContent = copied ? `Copied as ${name}.` : "The browser does not allow copying.";
    });
  }

  // Pictures

  const FIRST_CARDS = 12;
  const KINDS = { right: "✓ right", wrong: "✗ wrong", missed: "○ missed", unknown: "? unknown", later: "later" };

  function sees(section) {
    const { scale, groups, methods, chosen, threshold: initial } = data("pictures-data");
    const list = section.querySelector(".cards");
    const more = section.querySelector(".more");
    const status = section.querySelector("[role=status]");
    const box = section.querySelector(".controls");
    let method = methods.find((each) => each.method === chosen);
    let task = Math.max(...method.tasks);
    let threshold = initial;
    let showAll = false;

    const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const fraction = (value) => (Math.floor((100 * value) / scale) / 100).toFixed(2);

    function judge(picture, scores, classes, learned) {
      const found = { right: [], wrong: [], missed: [], unknown: [], later: [] };
      const labels = new Set(picture.labels);
      const unknown = new Set(picture.unknown);
      const limit = Math.round(threshold * scale);
      let mistake = 0;
      for (let k = 0; k < classes.length; k++) {
        const given = k < learned && scores[k] >= limit;
        const kind = k >= learned ? labels.has(k) && "later"
          : unknown.has(k) ? given && "unknown"
          : labels.has(k) ? (given ? "right" : "missed") : given && "wrong";
        if (!kind) continue;
        found[kind].push({ name: classes[k], score: k < learned ? scores[k] : null });
        if (kind === "wrong") mistake = Math.max(mistake, scores[k] + 1);
        if (kind === "missed") mistake = Math.max(mistake, scale - scores[k] + 1);
      }
      for (const each of Object.values(found)) each.sort((a, b) => b.score - a.score);
      return { picture, found, mistake };
    }

    function card({ picture, found }, classes) {
      const lines = make("dl");
      for (const [kind, each] of Object.entries(found)) {
        if (!each.length) continue;
        const text = each.map(({ name, score }) => (score === null ? name : `${name} ${fraction(score)}`)).join(", ");
        lines.append(make("div", { className: kind }, make("dt", { textContent: KINDS[kind] }), make("dd", { textContent: text })));
      }
      const alt = picture.labels.length ? `Picture with ${picture.labels.map((k) => classes[k]).join(", ")}` : "Picture without a label";
      const image = make("img", { alt, src: `data:image/jpeg;base64,${picture.jpeg}` });
      return make("li", { className: "card" }, image, make("p", { className: "name", textContent: picture.name }), lines);
    }

    function update() {
      const { classes, sizes, pictures } = groups[method.group];
      const place = method.tasks.indexOf(task);
      const learned = sizes.slice(0, task).reduce((sum, size) => sum + size, 0);
      const scores = decode(method.scores[place]);
      const judged = pictures.map((picture, n) => judge(picture, scores.subarray(n * learned, (n + 1) * learned), classes, learned));
      judged.sort((a, b) => b.mistake - a.mistake);
      list.replaceChildren(...judged.slice(0, showAll ? judged.length : FIRST_CARDS).map((each) => card(each, classes)));
      const total = (kind) => judged.reduce((sum, { found }) => sum + found[kind].length, 0);
      status.textContent = `${method.name} after ${method.texts[place]}, threshold ${threshold.toFixed(2)}, ${judged.length} pictures: `
        + `${total("right")} labels right, ${total("wrong")} wrong, ${total("missed")} missed.`;
      more.hidden = showAll || judged.length <= FIRST_CARDS;
      more.textContent = `Show all ${judged.length} pictures`;
    }

    function controls() {
      const first = Math.min(...method.tasks);
      const last = Math.max(...method.tasks);
      task = Math.min(Math.max(task, first), last);
      const options = methods.map((each) => [each, each.name]);
      const slot = make("span", { className: "control" }, slider({ label: "after task", values: [first, last, 1], default: task, play: true }, (value) => { task = value; update(); }));
      const choose = choice({ label: "method", values: options, default: method }, (value) => {
        method = value;
        controls();
        box.querySelector("select")?.focus();
        update();
      });
      const limit = slider({ label: "threshold", values: [0.05, 0.95, 0.05], default: threshold }, (value) => { threshold = value; update(); });
      box.replaceChildren(...(methods.length > 1 ? [choose] : []), slot, limit);
    }

    more.addEventListener("click", () => {
      showAll = true;
      update();
      list.children[FIRST_CARDS]?.scrollIntoView({ block: "nearest" });
    });
    controls();
    update();
  }

  const section = document.getElementById("pictures");
  if (section) sees(section);
})();
