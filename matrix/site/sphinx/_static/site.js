// The search of the start page, and "is mine among them?" on the page of a bug. What is asked stands in the address.
"use strict";
(() => {
  const root = document.documentElement.dataset.content_root || "";
  const WEIGHTS = { keys: 4, message: 2, words: 1 };
  const MOST = 50; // results shown
  const PREFIX = /^(?:\[?(?:rank|default)\s?\d+\]?:\s?|\(\w+ pid=[^)]*\)\s?|\d+:\s)/gm;
  const RAISED = /^(?:[\w.]*(?:Error|Exception|Interrupt|Warning|Exit))\b.*|^(?!\s|Traceback|File ).*\b(?:error|failed)\b.*/gim;

  const NUMBER = /^(?:https?:\S+\/(?:issues|pull|commit)\/|[\w./-]*#)([0-9a-f]+)\S*$/;

  const asked = () => new URLSearchParams(location.hash.slice(1));
  const ask = (values, push) => {
    const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
    if (query.toString() !== asked().toString())
      history[push ? "pushState" : "replaceState"](null, "", `#${query}`);
  };
  const element = (tag, text, attributes = {}) => Object.assign(document.createElement(tag), { textContent: text, ...attributes });

  // what the theme leaves to people without a mouse or without eyes
  for (const each of document.querySelectorAll("pre, .table-wrapper")) if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");

  // ---- the page of a bug

  const mine = document.querySelector("form.mine");
  if (mine) {
    const among = (name) => mine.dataset[name].split(" ").filter(Boolean);
    const select = (name, label, values) => {
      const field = element("select", "", { name });
      field.append(element("option", "any", { value: "" }), ...values.map((each) => element("option", each)));
      const told = element("label", label);
      told.append(field);
      mine.append(told);
      return field;
    };
    const fields = [
      select("deepspeed", "My DeepSpeed ", among("releases").reverse()),
      select("torch", "My torch ", among("torches").reverse()),
    ];
    const answer = element("output", "");
    mine.append(answer);
    const tell = () => {
      const [deepspeed, torch] = fields.map((each) => each.value);
      const has = among("affected").includes(deepspeed) && (!torch || among("with").includes(torch));
      const named = `DeepSpeed ${deepspeed}${torch ? ` with torch ${torch}` : ""}`;
      answer.textContent = deepspeed ? `${has ? "Yes" : "No"}: ${named} ${has ? "has" : "does not have"} this bug.` : "";
      answer.className = has ? "has" : "";
    };
    const show = () => {
      for (const each of fields) each.value = asked().get(each.name) || "";
      tell();
    };
    mine.addEventListener("change", () => {
      ask(Object.fromEntries(fields.map((each) => [each.name, each.value])), true);
      tell();
    });
    addEventListener("popstate", show);
    mine.hidden = false;
    show();
  }

  // ---- the search

  const form = document.getElementById("find");
  if (!form) return;
  const field = Object.fromEntries(["query", "deepspeed", "torch", "area", "severity"].map((id) => [id, document.getElementById(id)]));
  const FACETS = ["area", "severity"];
  const count = document.getElementById("count");
  const list = document.getElementById("found");
  let known, vocabulary;

  const words = (text) =>
    text
      .toLowerCase()
      .replace(/_/g, " ")
      .replace(/\b\d+\.\d[\w.+]*/g, " ") // a version; "my DeepSpeed" is for that
      .replace(/\b(?:zero|stage)[ -]*([0-3])\b/g, " zero$1 ")
      .match(/[\p{L}\p{N}]+/gu) || [];

  const load = () =>
    new Promise((done) => {
      if (known) return done();
      const script = element("script", "", { src: `${root}_static/known.js`, onload: done });
      document.head.append(script);
    }).then(() => {
      if (known) return;
      known = window.dsfixKnown;
      vocabulary = new Map(); // word -> page -> weight
      known.pages.forEach((page, place) => {
        page.keys = [page.title, page.area, page.severity, page.keys].join(" ");
        for (const [part, weight] of Object.entries(WEIGHTS))
          for (const word of words(page[part] || "")) {
            if (!vocabulary.has(word)) vocabulary.set(word, new Map());
            const places = vocabulary.get(word);
            if (!(places.get(place) >= weight)) places.set(place, weight);
          }
        for (const each of page.patterns || []) each.test = new RegExp(each.is);
      });
    });

  const stem = (word) => (/\d/.test(word) ? word : word.replace(/(?<=\w{4})(?:ings?|ions?|ed|es|e|(?<!s)s)$/, ""));

  // page -> score: how rare each word is, times the weight of the best part of the page that has it; and how many it has
  const scored = (text) => {
    const scores = new Map();
    const asked = new Set(words(text).map(stem));
    for (const word of asked) {
      const having = new Map();
      const note = (places) => places.forEach((weight, place) => having.set(place, Math.max(weight, having.get(place) || 0)));
      if (word.length > 3 || !/\d/.test(word) && word.length > 2) {
        for (const [each, places] of vocabulary) if (each.startsWith(word)) note(places);
      } else if (vocabulary.has(word)) note(vocabulary.get(word));
      const rare = Math.log(known.pages.length / (having.size || 1));
      having.forEach((weight, place) => {
        const [score, count] = scores.get(place) || [0, 0];
        scores.set(place, [score + weight * rare, count + 1]);
      });
    }
    return new Map([...scores].map(([place, [score, count]]) => [place, (score * count) / asked.size]));
  };

  const matching = (text) => {
    const plain = text.replace(PREFIX, "");
    const shown = ({ has, test }) => (!has.length || has.some((each) => plain.includes(each))) && test.test(plain);
    const found = []; // the most specific first: a cause before a message with several, a long pattern before a short one
    for (const page of known.pages) {
      const length = Math.max(0, ...(page.patterns || []).filter(shown).map((each) => each.is.length));
      if (length) found.push({ page, order: (page.rank || 0) - length / 1e6 });
    }
    return found.sort((a, b) => a.order - b.order).map((each) => each.page);
  };

  const search = (text, now) => {
    if (!text.trim()) return known.pages.filter((page) => page.severity);
    const first = text.length > 7 ? matching(text) : [];
    const several = text.trim().includes("\n");
    if (several && first.some((page) => fits(page, now))) return first;
    const raised = several && text.replace(PREFIX, "").match(RAISED);
    const numbered = NUMBER.exec(text.trim());
    const scores = scored(numbered ? numbered[1] : raised ? raised.slice(-3).join("\n") : text.slice(-1000));
    const least = 0.4 * Math.max(0, ...scores.values());
    const others = [...scores].filter(([place, score]) => score >= least && score > 0 && !first.includes(known.pages[place]));
    return [...first, ...others.sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([place]) => known.pages[place])];
  };

  const fits = (page, values, but) => {
    const release = known.releases.indexOf(values.deepspeed);
    return (
      (release < 0 || !page.releases || page.releases.some(([from, to]) => from <= release && release <= to)) &&
      (!values.torch || !page.torch || page.torch.includes(values.torch)) &&
      FACETS.every((name) => name === but || !values[name] || page[name] === values[name])
    );
  };

  const span = (page) =>
    (page.releases || [[0, known.releases.length - 1]])
      .map(([from, to]) => (from === to ? known.releases[from] : `${known.releases[from]} to ${known.releases[to]}`))
      .join(", ");

  const item = (page, mineToo) => {
    const told = [page.name, page.severity, page.area, `DeepSpeed ${span(page)}`].filter(Boolean).join(" · ");
    const entry = element("li", "");
    entry.append(element("a", page.title, { href: `${root}${page.url}${mineToo}` }), element("span", told));
    return entry;
  };

  const values = () => Object.fromEntries(Object.entries(field).map(([id, each]) => [id, each.value]));

  const show = () => {
    const now = values();
    const idle = !Object.values(now).some((each) => each.trim());
    const found = idle ? [] : search(now.query, now);
    const fitting = found.filter((page) => fits(page, now));
    for (const name of FACETS) {
      const among = found.filter((page) => fits(page, now, name));
      for (const option of field[name].options)
        if (option.value)
          option.textContent = idle ? option.value : `${option.value} (${among.filter((page) => page[name] === option.value).length})`;
    }
    const link = new URLSearchParams(["deepspeed", "torch"].filter((id) => now[id]).map((id) => [id, now[id]])).toString();
    list.replaceChildren(...fitting.slice(0, MOST).map((page) => item(page, link && `#${link}`)));
    const more = fitting.length > MOST ? `, the first ${MOST} of them below` : "";
    const left = found.length > fitting.length ? `; ${found.length - fitting.length} more without the filters` : "";
    const none = `Nothing is known of this${found.length ? " with these filters" : ": try fewer or other words"}`;
    count.textContent = idle ? "" : (fitting.length ? `${fitting.length} found${more}` : none) + left + ".";
  };

  const refresh = (push) => {
    ask(values(), push);
    return load().then(show);
  };

  const restore = () => {
    const query = asked();
    for (const [id, each] of Object.entries(field)) each.value = query.get(id) || "";
    if (query.toString() || known) load().then(show);
  };

  form.addEventListener("focusin", load);
  form.addEventListener("submit", (event) => event.preventDefault());
  field.query.addEventListener("input", () => refresh(false));
  form.addEventListener("change", (event) => event.target === field.query || refresh(true));
  field.query.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" && !event.shiftKey) || event.key === "ArrowDown") {
      const first = list.querySelector("a");
      if (first && !field.query.value.includes("\n")) {
        event.preventDefault();
        first.focus();
      }
    }
  });
  addEventListener("popstate", restore);
  restore();
})();
