'use strict';
(() => {
  // Everything of the image goes through textContent: nothing here makes markup out of a string.
  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const number = n => n.toLocaleString('en-US');
  const count = (n, what) => `${number(n)} ${what}${n === 1 ? '' : 's'}`;
  const bytes = n => {
    const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
    let size = Math.abs(n), unit = 0;
    while (size >= 999.5 && unit < 6) { size /= 1000; unit++; }
    const digits = unit === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    return (n < 0 ? '-' : '') + size.toFixed(digits) + ' ' + units[unit];
  };
  const change = n => (n > 0 ? '+' : '') + bytes(n);

  const marks = {
    '+': ['add', 'added'], '-': ['del', 'removed'], 'M': ['mod', 'content or link changed'],
    'T': ['typ', 'type changed'], 'U': ['meta', 'mode, owner or xattr changed'],
  };
  const kinds = Object.keys(marks);

  // Tree shows as many rows as there is room for, of however many there are.
  class Tree {
    static row = 26; // its height; style.css knows it, too
    static most = 30e6; // browsers stop counting pixels somewhere above

    constructor(root, trees, panel) {
      this.root = root;
      this.view = root.querySelector('.tree');
      this.rows = root.querySelector('.rows');
      this.about = root.querySelector('.about');
      this.panel = panel;
      this.query = '';
      this.shown = new Set(kinds);
      this.load(trees[0]);
      const choice = root.querySelector('select');
      if (choice) choice.addEventListener('change', () => this.load(trees[choice.selectedIndex]));
      this.view.addEventListener('scroll', () => this.draw());
      this.view.addEventListener('keydown', e => this.key(e));
      this.view.addEventListener('click', e => this.click(e));
      this.view.addEventListener('focus', () => { this.picked = true; this.draw(); });
      new ResizeObserver(() => this.draw()).observe(this.view);
      all('button[data-kind]', root).forEach(b => b.addEventListener('click', () => {
        const on = b.getAttribute('aria-pressed') !== 'true';
        b.setAttribute('aria-pressed', on);
        if (on) this.shown.add(b.dataset.kind); else this.shown.delete(b.dataset.kind);
        this.filter(this.query);
      }));
      all('button[data-do]', root).forEach(b => b.addEventListener('click', () => {
        this.folds().fill(b.dataset.do === 'unfold' ? 1 : 0);
        this.current = 0;
        this.list();
      }));
    }

    // load shows another tree.
    load(data) {
      this.data = data;
      this.n = data.names.length;
      this.names = this.full = this.hit = this.keep = null;
      this.index();
      this.open = new Uint8Array(this.n);
      this.start();
      this.current = 0;
      this.picked = false;
      this.about.hidden = true;
      all('button[data-kind]', this.root).forEach(b => {
        let n = 0;
        for (let i = 0; i < this.n; i = this.end[i]) n += this.counts[kinds.indexOf(b.dataset.kind)][i];
        b.querySelector('small').textContent = number(n);
        b.hidden = !n;
      });
      this.filter(this.query);
    }

    // index finds each node's parent and end, and sums up what lies below it.
    index() {
      const {depths, kinds: kind, was, is} = this.data;
      const n = this.n;
      this.parent = new Int32Array(n).fill(-1);
      this.end = new Int32Array(n);
      this.paths = new Int32Array(n);
      this.bytes = new Float64Array(n);
      this.counts = kinds.map(() => new Int32Array(n));
      this.place = new Int32Array(n); // among its siblings, from 1
      this.siblings = new Int32Array(n + 1); // how many children a node has; the root is at n
      const open = [];
      const shut = depth => {
        while (open.length >= depth) this.end[open.pop()] = this.at;
      };
      for (let i = 0; i < n; i++) {
        this.at = i;
        shut(depths[i]);
        const parent = open.length ? open[open.length - 1] : -1;
        this.parent[i] = parent;
        this.place[i] = ++this.siblings[parent < 0 ? n : parent];
        open.push(i);
        const k = kinds.indexOf(kind[i]);
        if (k >= 0) {
          this.counts[k][i] = this.paths[i] = 1;
          this.bytes[i] = is[i] - was[i];
        }
        const rest = this.data.rest[i];
        if (rest) {
          rest.forEach((r, k) => {
            if (k === 0) { this.bytes[i] += r; return; }
            this.counts[k - 1][i] += r;
            this.paths[i] += r;
          });
        }
      }
      this.at = n;
      shut(1);
      for (let i = n - 1; i >= 0; i--) {
        const p = this.parent[i];
        if (p < 0) continue;
        this.paths[p] += this.paths[i];
        this.bytes[p] += this.bytes[i];
        this.counts.forEach(c => { c[p] += c[i]; });
      }
    }

    // start unfolds level by level while a screen has room, but nothing that came or went as a whole.
    start() {
      let level = [], room = 24;
      for (let i = 0; i < this.n; i = this.end[i]) level.push(i);
      room -= level.length;
      while (level.length) {
        const next = [];
        for (const i of level) {
          if (this.whole(i) || this.siblings[i] === 0 || this.siblings[i] > room) continue;
          this.open[i] = 1;
          room -= this.siblings[i];
          for (let j = i + 1; j < this.end[i]; j = this.end[j]) next.push(j);
        }
        level = next;
      }
    }

    whole(i) {
      return this.data.kinds[i] === '+' && this.counts[0][i] === this.paths[i] ||
        this.data.kinds[i] === '-' && this.counts[1][i] === this.paths[i];
    }

    // why is what the profile says of a node, or of a directory above it that came or went as a whole.
    why(i) {
      const {why, kinds} = this.data;
      for (const kind = kinds[i]; i >= 0 && kinds[i] === kind; i = this.parent[i]) if (why[i]) return why[i];
      return '';
    }

    path(i) {
      const names = [];
      for (; i >= 0; i = this.parent[i]) names.push(this.data.names[i]);
      return '/' + names.reverse().join('/');
    }

    // lower gives names, or paths, in lower case: both are made when they are first asked for.
    lower(paths) {
      if (!this.names) this.names = this.data.names.map(s => s.toLowerCase());
      if (!paths) return this.names;
      if (!this.full) {
        this.full = new Array(this.n);
        for (let i = 0; i < this.n; i++) {
          const p = this.parent[i];
          this.full[i] = (p < 0 ? '' : this.full[p]) + '/' + this.names[i];
        }
      }
      return this.full;
    }

    folds() { return this.hit ? this.found : this.open; }

    // filter keeps what matches, and the directories above it; what lies in a directory that matches can be unfolded. It
    // gives how many match.
    filter(query) {
      this.query = query;
      const narrowed = this.shown.size < kinds.length;
      if (!query && !narrowed) {
        this.hit = this.keep = null;
        this.list();
        return this.n;
      }
      const text = this.lower(query.includes('/'));
      this.hit = new Uint8Array(this.n);
      this.keep = new Uint8Array(this.n);
      this.found = new Uint8Array(this.n);
      let hits = 0;
      for (let i = 0; i < this.n; i++) {
        const kind = this.data.kinds[i];
        if (narrowed && !this.shown.has(kind)) continue;
        if (query && !text[i].includes(query)) continue;
        hits++;
        this.hit[i] = 1;
        this.keep[i] = 1;
        for (let j = this.parent[i]; j >= 0 && !this.found[j]; j = this.parent[j]) this.keep[j] = this.found[j] = 1;
      }
      this.inner = this.found.slice(); // directories with a match in them
      this.view.scrollTop = 0;
      this.list();
      return hits;
    }

    // list finds out which nodes have a row.
    list() {
      const open = this.folds(), rows = [];
      let free = 0; // up to where everything is shown, since it lies in a directory that matches
      for (let i = 0; i < this.n;) {
        if (this.keep && !this.keep[i] && i >= free) { i = this.end[i]; continue; }
        rows.push(i);
        if (open[i] && this.hit && this.hit[i] && !this.inner[i]) free = Math.max(free, this.end[i]);
        i = open[i] ? i + 1 : this.end[i];
      }
      this.visible = rows;
      let at = rows.indexOf(this.current);
      for (let up = this.current; at < 0 && up >= 0; up = this.parent[up]) at = rows.indexOf(up);
      this.current = rows[Math.max(at, 0)] ?? 0;
      const height = Math.min(rows.length * Tree.row, Tree.most);
      this.rows.style.height = height + 'px';
      this.view.style.height = `min(${Math.max(rows.length, 1) * Tree.row + 2}px, var(--tree))`;
      this.draw();
    }

    draw() {
      const room = Math.ceil(this.view.clientHeight / Tree.row);
      // Above Tree.most the scroll bar stands for more rows than it has pixels.
      const height = this.rows.offsetHeight, span = this.visible.length * Tree.row;
      const most = Math.max(1, height - this.view.clientHeight);
      const top = span > height ? this.view.scrollTop / most * (span - this.view.clientHeight) : this.view.scrollTop;
      const first = Math.max(0, Math.floor(top / Tree.row) - 4);
      const last = Math.min(this.visible.length, first + room + 8);
      const rows = [];
      for (let at = first; at < last; at++) {
        const row = this.draft(this.visible[at]);
        row.style.transform = `translateY(${at * Tree.row - top + this.view.scrollTop}px)`;
        rows.push(row);
      }
      this.rows.replaceChildren(...rows);
      const active = rows.some(r => r.id === this.id(this.current));
      if (active) this.view.setAttribute('aria-activedescendant', this.id(this.current));
      else this.view.removeAttribute('aria-activedescendant');
    }

    id(i) { return `row-${this.panel}-${i}`; }

    isDir(i) { return this.data.dirs[i] === '1'; }

    draft(i) {
      const d = this.data, kind = d.kinds[i], inside = this.siblings[i] > 0;
      const row = el('div', 'row' + (i === this.current && this.picked ? ' current' : '') + (this.hit && !this.hit[i] ? ' above' : ''));
      row.id = this.id(i);
      row.dataset.i = i;
      row.setAttribute('role', 'treeitem');
      row.setAttribute('aria-level', d.depths[i]);
      row.setAttribute('aria-posinset', this.place[i]);
      row.setAttribute('aria-setsize', this.siblings[this.parent[i] < 0 ? this.n : this.parent[i]]);
      row.setAttribute('aria-selected', i === this.current);
      if (inside) row.setAttribute('aria-expanded', !!this.folds()[i]);
      const mark = el('span', 'mark ' + (marks[kind] ? marks[kind][0] : 'none'), marks[kind] ? kind : '');
      if (marks[kind]) mark.title = marks[kind][1];
      const twist = el('span', inside ? 'twist' : 'twist leaf');
      const label = el('span', 'label');
      label.style.paddingLeft = Math.min(d.depths[i] - 1, 24) * 1.1 + 'rem';
      label.append(twist, this.name(i));
      const words = d.words[i];
      if (words) label.append(el('span', 'words', words));
      if (d.why[i]) label.append(el('span', 'words', d.why[i]));
      const counts = el('span', 'counts');
      if (inside || d.rest[i]) {
        kinds.forEach((k, at) => {
          const n = this.counts[at][i];
          if (n) counts.append(el('span', marks[k][0], k + number(n)));
        });
      }
      const size = this.bytes[i];
      row.append(mark, label, counts, el('span', 'size', size ? change(size) : ''));
      return row;
    }

    // name marks what was searched for.
    name(i) {
      const text = this.data.names[i], out = el('span', 'name');
      const wanted = this.query.slice(this.query.lastIndexOf('/') + 1);
      const at = wanted && this.hit && this.hit[i] ? this.names[i].indexOf(wanted) : -1;
      // Lower case can have another length; then nothing is marked.
      if (at >= 0 && this.names[i].length === text.length) {
        out.append(text.slice(0, at), el('mark', '', text.slice(at, at + wanted.length)), text.slice(at + wanted.length));
      } else {
        out.textContent = text;
      }
      if (this.isDir(i)) out.append('/');
      return out;
    }

    fold(i, open) {
      if (!this.siblings[i]) return;
      this.folds()[i] = open ? 1 : 0;
      this.list();
    }

    go(i) {
      this.current = i;
      this.picked = true;
      const at = this.visible.indexOf(i), view = this.view;
      if (this.visible.length * Tree.row <= Tree.most) {
        const top = at * Tree.row;
        if (top < view.scrollTop) view.scrollTop = top;
        if (top + Tree.row > view.scrollTop + view.clientHeight) view.scrollTop = top + Tree.row - view.clientHeight;
      } else {
        view.scrollTop = at / this.visible.length * (this.rows.offsetHeight - view.clientHeight);
      }
      this.draw();
      this.tell(i);
    }

    key(e) {
      if (e.ctrlKey || e.metaKey || e.altKey || !this.visible.length) return;
      const i = this.current, at = this.visible.indexOf(i), last = this.visible.length - 1;
      const page = Math.max(1, Math.floor(this.view.clientHeight / Tree.row) - 1);
      const to = n => this.go(this.visible[Math.max(0, Math.min(last, n))]);
      switch (e.key) {
        case 'ArrowDown': to(at + 1); break;
        case 'ArrowUp': to(at - 1); break;
        case 'PageDown': to(at + page); break;
        case 'PageUp': to(at - page); break;
        case 'Home': to(0); break;
        case 'End': to(last); break;
        case 'ArrowRight':
          if (this.siblings[i] && !this.folds()[i]) this.fold(i, true);
          else if (this.siblings[i]) to(at + 1);
          break;
        case 'ArrowLeft':
          if (this.siblings[i] && this.folds()[i]) this.fold(i, false);
          else if (this.parent[i] >= 0) this.go(this.parent[i]);
          break;
        case 'Enter': case ' ':
          this.fold(i, !this.folds()[i]);
          this.tell(i);
          break;
        default: return;
      }
      e.preventDefault();
    }

    click(e) {
      const row = e.target.closest('.row');
      if (!row) return;
      const i = Number(row.dataset.i);
      this.current = i;
      this.picked = true;
      if (this.siblings[i]) this.fold(i, !this.folds()[i]);
      else this.draw();
      this.tell(i);
    }

    // tell says below the tree what is known of a node.
    tell(i) {
      const d = this.data, kind = d.kinds[i], box = this.about;
      const title = el('p', 'path');
      if (marks[kind]) title.append(el('span', 'mark ' + marks[kind][0], kind), ' ');
      title.append(el('code', '', this.path(i)), ' ', el('span', 'words', marks[kind] ? marks[kind][1] : 'the same, but not all in it'));
      const list = el('dl');
      const put = (name, value) => {
        if (!value) return;
        const div = el('div');
        div.append(el('dt', '', name), el('dd', '', value));
        list.append(div);
      };
      const side = (attr, size, link) => {
        const a = d.attrs[attr];
        if (!a) return '';
        return [a[0], a[1], a[2], a[0] === 'file' ? bytes(size) : '', link ? '→ ' + link : '', a[3]].filter(Boolean).join('  ');
      };
      const links = d.links[i] || [];
      put('base', side(d.wasAttr[i], d.was[i], links[0]));
      put('slim', side(d.isAttr[i], d.is[i], links[1]));
      put('differs', d.words[i]);
      put('why', this.why(i));
      if (this.siblings[i] || d.rest[i]) {
        put('in it', kinds.map((k, at) => this.counts[at][i] ? `${number(this.counts[at][i])} ${marks[k][1]}` : '').filter(Boolean).join(', ') +
          (this.bytes[i] ? ', ' + change(this.bytes[i]) : ''));
      }
      if (d.rest[i]) put('not here', 'This file has room for some of the paths only; slimctl diff --format json has all.');
      box.replaceChildren(title, list);
      const text = d.texts[i] && all('.text', this.root.closest('.panel')).find(t => Number(t.dataset.node) === i);
      if (text) {
        const show = el('button', '', 'Show the changed lines');
        show.type = 'button';
        show.addEventListener('click', () => {
          text.open = true;
          text.scrollIntoView({block: 'start'});
          text.querySelector('summary').focus();
        });
        box.append(show);
      }
      box.hidden = false;
    }

    // print puts rows into the page as far as paper is patient.
    print() {
      const rows = this.visible.slice(0, 400).map(i => this.draft(i));
      if (this.visible.length > rows.length) rows.push(el('div', 'row', `… and ${number(this.visible.length - rows.length)} more`));
      this.view.style.height = this.rows.style.height = 'auto';
      this.rows.replaceChildren(...rows);
    }
  }

  // squarify lays out cells, biggest first, in the box w × h so that they are as square as can be.
  // Bruls, Huizing, van Wijk: Squarified Treemaps (2000).
  const squarify = (cells, w, h) => {
    const total = cells.reduce((sum, c) => sum + c.room, 0);
    const out = [];
    if (!(total > 0) || !(w > 0) || !(h > 0)) return out;
    const scale = w * h / total;
    let x = 0, y = 0, i = 0;
    const worst = (row, sum, side) => {
      const s2 = sum * sum, l2 = side * side;
      return Math.max(l2 * row[0] / s2, s2 / (l2 * row[row.length - 1]));
    };
    while (i < cells.length) {
      const side = Math.min(w - x, h - y);
      const row = [cells[i].room * scale];
      let sum = row[0], n = 1;
      while (i + n < cells.length) {
        const area = cells[i + n].room * scale;
        if (worst([...row, area], sum + area, side) > worst(row, sum, side)) break;
        row.push(area);
        sum += area;
        n++;
      }
      const thick = side > 0 ? sum / side : 0, down = w - x > h - y;
      let along = 0;
      row.forEach((area, k) => {
        const long = thick > 0 ? area / thick : 0;
        out.push(down ? {c: cells[i + k], x, y: y + along, w: thick, h: long} : {c: cells[i + k], x: x + along, y, w: long, h: thick});
        along += long;
      });
      if (down) x += thick; else y += thick;
      i += n;
    }
    return out;
  };

  // maps draws a treemap for each side in one layout: a component lies where it does on the other side, and fills as much
  // of its place as it has of the bigger side's bytes.
  const maps = (panel, sides) => {
    const figures = all('.map', panel);
    const light = (name, on) => figures.forEach(f => all('.cell', f).forEach(c => c.classList.toggle('lit', on && c.dataset.name === name)));
    figures.forEach((figure, at) => {
      const side = sides[at], box = figure.querySelector('.cells');
      const draw = () => {
        const w = box.clientWidth, h = box.clientHeight;
        if (!w || !h) return;
        box.replaceChildren(...squarify(side.cells, w, h).map(({c, x, y, w: cw, h: ch}) => {
          const fill = c.bytes ? Math.sqrt(c.bytes / c.room) : 1;
          cw *= fill;
          ch *= fill;
          const cell = el('div', `cell c${c.color}` + (c.bytes ? '' : ' gone'));
          Object.assign(cell.style, {left: x + 'px', top: y + 'px', width: cw + 'px', height: ch + 'px'});
          cell.dataset.name = c.name;
          cell.title = `${c.name}: ${bytes(c.bytes)}${c.note ? ', ' + c.note : ''}`;
          if (cw > 46 && ch > 20) cell.append(el('b', '', c.name));
          if (cw > 46 && ch > 38) cell.append(el('span', '', bytes(c.bytes)));
          if (c.note && cw > 70 && ch > 56) cell.append(el('span', 'note', c.note));
          cell.addEventListener('pointerenter', () => light(c.name, true));
          cell.addEventListener('pointerleave', () => light(c.name, false));
          return cell;
        }));
      };
      new ResizeObserver(draw).observe(box);
    });
  };

  // texts draws a unified diff when it is first unfolded.
  const mostLines = 4000;
  const texts = (panel, data) => all('.text', panel).forEach(details => details.addEventListener('toggle', () => {
    const pre = details.querySelector('pre');
    if (!details.open || pre.firstChild) return;
    const lines = (data.texts[details.dataset.node] || '').split('\n');
    if (lines[lines.length - 1] === '') lines.pop();
    lines.slice(0, mostLines).forEach(s => {
      const cls = s.startsWith('@@') ? 'at' : /^(\+\+\+|---) /.test(s) ? 'file' : s[0] === '+' ? 'add' : s[0] === '-' ? 'del' : '';
      pre.append(el('span', cls, s + '\n'));
    });
    if (lines.length > mostLines) pre.append(el('span', 'at', `… and ${count(lines.length - mostLines, 'more line')}`));
  }));

  // Tables are searched row by row; a section without a match is out of the way.
  class Tables {
    constructor(panel) {
      this.parts = all('.part', panel).map(part => ({
        part,
        sections: all('.section, .text', part).map(section => ({
          section, rows: all('tbody tr, .same > code', section), text: null, title: section.querySelector('summary').textContent.toLowerCase(),
          same: section.querySelector('details.same'),
        })),
        rest: all('.maps, .stacks, .intro, .part > .same', part),
        files: part.querySelector('.files'),
      }));
    }

    filter(query, paths) {
      let hits = 0;
      for (const {part, sections, rest, files} of this.parts) {
        let any = files && paths > 0;
        for (const s of sections) {
          s.text ??= s.rows.map(r => r.textContent.toLowerCase());
          let found = 0;
          s.rows.forEach((r, at) => {
            const hit = s.text[at].includes(query);
            r.hidden = !hit;
            if (hit) found++;
          });
          hits += query ? found : 0;
          const title = query && s.section.matches('.text') && s.title.includes(query);
          if (title) hits++;
          s.section.hidden = !!query && !found && !title;
          if (s.was === undefined) s.was = s.section.open;
          s.section.open = query && found ? true : query ? s.section.open : s.was;
          if (s.same) s.same.open = !!query && all('code:not([hidden])', s.same).length > 0;
          if (!query) s.was = undefined;
          any ||= found || title;
        }
        rest.forEach(r => { r.hidden = !!query; });
        if (files) files.hidden = !!query && !paths;
        part.hidden = !!query && !any;
      }
      return hits;
    }
  }

  // A platform's data is read when somebody first looks at it.
  const panels = all('.panel').map(root => ({root}));
  const ready = at => {
    const panel = panels[at], root = panel.root;
    if (panel.tables) return panel;
    const data = JSON.parse(document.getElementById(`data-${at}`).textContent);
    const files = root.querySelector('.files');
    panel.tables = new Tables(root);
    if (files && data.trees) {
      panel.tree = new Tree(files, data.trees, at);
      texts(root, data.trees[0]);
    }
    if (data.maps) maps(root, data.maps);
    return panel;
  };
  if (panels.length) ready(0);
  // A link to a row of another platform shows that platform first.
  const linked = () => {
    const row = document.getElementById(location.hash.slice(1));
    const at = row ? panels.findIndex(p => p.root.hidden && p.root.contains(row)) : -1;
    if (at >= 0) choose(at);
    if (row && row.matches('tr')) {
      row.closest('details').open = true;
      row.scrollIntoView({block: 'center'});
    }
  };

  const search = document.getElementById('search'), found = document.getElementById('found');
  const nothing = document.getElementById('nothing');
  const seek = () => {
    const query = search.value.trim().toLowerCase();
    document.body.classList.toggle('seeking', !!query);
    for (const {root, tree, tables} of panels) {
      if (root.hidden || !tables) continue;
      const paths = tree ? tree.filter(query) : 0;
      const rows = tables.filter(query, paths);
      all('.head, .cards, .quiet', root).forEach(e => { e.hidden = !!query; });
      found.value = !query ? '' : [tree ? count(paths, 'path') : '', count(rows, 'row')].filter(Boolean).join(', ');
      nothing.hidden = !query || paths + rows > 0;
    }
  };
  let timer;
  search.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(seek, 120);
  });
  search.addEventListener('keydown', e => {
    if (e.key === 'Escape') {
      search.value = '';
      seek();
    }
    if (e.key === 'Enter') {
      clearTimeout(timer);
      seek();
    }
    if (e.key === 'ArrowDown') {
      const shown = panels.find(p => !p.root.hidden);
      if (shown && shown.tree && shown.tree.visible.length) {
        shown.tree.view.focus();
        e.preventDefault();
      }
    }
  });
  document.addEventListener('keydown', e => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input')) return;
    e.preventDefault();
    search.focus();
    search.select();
  });

  const tabs = all('[role=tab]');
  const choose = at => {
    tabs.forEach((t, i) => {
      t.setAttribute('aria-selected', i === at);
      t.tabIndex = i === at ? 0 : -1;
      panels[i].root.hidden = i !== at;
    });
    const {tree} = ready(at);
    seek();
    if (tree) tree.draw();
  };
  tabs.forEach((t, at) => {
    t.addEventListener('click', () => choose(at));
    t.addEventListener('keydown', e => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
      if (!step) return;
      const next = (at + step + tabs.length) % tabs.length;
      choose(next);
      tabs[next].focus();
    });
  });

  addEventListener('hashchange', linked);
  linked();

  let closed = [];
  addEventListener('beforeprint', () => {
    closed = all('.section:not([open])');
    closed.forEach(d => { d.open = true; });
    panels.forEach(p => p.tree && p.tree.print());
  });
  addEventListener('afterprint', () => {
    closed.forEach(d => { d.open = false; });
    panels.forEach(p => p.tree && p.tree.list());
  });
})();
