/** One run drawn from its record; every part is updated in place, so nothing flickers. */

import { TranslationBundle } from '@jupyterlab/translation';
import { SELECTABLE, TIME_SELECTED } from '../charts/brush';
import { ChildrenTable } from '../children';
import { FilesList, IFileRequests } from '../files';
import { drawLinks } from '../links';
import { PicturesRow, ReadPicture } from '../pictures';
import { duration, json } from '../format';
import { IChildRun, IRunRecord, RECORD_SCHEMA } from '../protocol';
import { ISpan, shownSpans, spans, TERMINAL } from '../record';
import { drawn } from '../terminalSpans';
import { RunCharts } from './charts';
import { drawExcerpt } from './excerpt';
import { drawFrames } from './failure';
import { IDisplayHost } from './display';
import { DetailsFold, HeaderLinks, IHeaderActions } from './header';
import { LogView } from './log';
import { IPartHost, IRecordPart, PARTS } from './parts';
import { SweepBoardView } from './sweepBoard';
import type { ITrialActions } from './trialTable';
import { SummaryView, VerdictView } from './verdict';

/** Share of the bar from which a phase has a label. */
const MIN_LABELED_SHARE = 0.03;

/** State of the view that is not in the record. */
export interface ISituation {
  /** seconds since the record was received from a live run; 0 when it is not live */
  since: number;
  /** a kernel is there that could take a request */
  cancellable: boolean;
  /** the person has clicked Cancel */
  cancelClicked: boolean;
  /** one line about where the record comes from, or empty */
  notice: string;
  /** one line about a request that failed, or empty */
  failure: string;
  /** live charts of this ended run can be had */
  interactive: boolean;
  /** query the kernel about the run only at the user's request */
  loadable: boolean;
  /** requests about the run are allowed */
  trusted: boolean;
  /** the kernel of the output answers requests about the run */
  connected: boolean;
  /** what can be done with the trials of a sweep */
  trials: ITrialActions;
  /** handle of the trial that is shown below the table */
  openedTrial: string;
  /** handles of trials that are being canceled */
  cancelingTrials: ReadonlySet<string>;
}

/** Actions of the user. */
export interface IActions {
  cancel(): void;
  dashboard(): void;
  /** The charts are in sight again: those drawn meanwhile have no size. */
  unfolded(): void;
  load(): void;
  copy(text: string): void;
  /** The last lines of the log of a step or trial, with codes of colors; rejects with the kernel's sentence. */
  childLog(id: string): Promise<string[]>;
  /** A whole picture of the run; rejects with the kernel's sentence. */
  picture: ReadPicture;
  /** The links of the header, besides those to parts of this view. */
  links: IHeaderActions;
  /** Requests about the files of the run. */
  files: IFileRequests;
  /** What draws the values that the script has displayed. */
  displays: IDisplayHost;
  /** What further parts use. */
  parts: IPartHost;
}

function element(tag: string, name: string, parent?: HTMLElement): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlRun-${name}`;
  parent?.append(node);
  return node;
}

/** A quiet button, hidden at first. */
function button(parent: HTMLElement, name: string, label: string, act: () => void): HTMLButtonElement {
  const node = element('button', name, parent) as HTMLButtonElement;
  node.classList.add('jp-mod-styled', 'jp-mod-minimal');
  node.type = 'button';
  node.textContent = label;
  node.hidden = true;
  node.addEventListener('click', act);
  return node;
}

/** Change text only when it differs: an untouched node keeps selection and announces nothing. */
function write(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
  node.hidden = !text;
}

export class RunView {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _actions: IActions
  ) {
    this.node = element('div', 'view');
    const head = element('div', 'head', this.node);
    this._state = element('span', 'state', head);
    this._state.setAttribute('role', 'status');
    this._name = element('strong', 'name', head);
    this._elapsed = element('span', 'elapsed', head);
    this._links = new HeaderLinks(_trans, { ..._actions.links, files: () => void this._files.toggle() });
    head.append(this._links.node);
    this._cancel = element('button', 'cancel', head) as HTMLButtonElement;
    // Red belongs to the dialog that confirms.
    this._cancel.classList.add('jp-mod-styled', 'jp-mod-minimal');
    this._cancel.type = 'button';
    this._cancel.addEventListener('click', () => _actions.cancel());
    this._interactive = button(head, 'interactive', _trans.__('Interactive charts'), () => _actions.dashboard());
    this._interactive.classList.add('jp-AmlRun-link');
    this._interactive.classList.remove('jp-mod-styled', 'jp-mod-minimal');
    this._load = button(head, 'load', _trans.__('Load live data'), () => _actions.load());
    this._phases = element('div', 'phases', this.node);
    this._waiting = element('div', 'waiting', this.node);
    this._verdict = new VerdictView(_trans);
    this.node.append(this._verdict.node);
    this._notice = element('div', 'notice', this.node);
    this._taken = element('details', 'taken', this.node);
    this._takenLine = element('summary', 'takenLine', this._taken);
    this._takenItems = element('div', 'takenItems', this._taken);
    this._notes = element('div', 'notes', this.node);
    this._doors = element('div', 'doors', this.node);
    this._error = element('div', 'error', this.node);
    this._error.setAttribute('role', 'alert');
    this._excerpt = element('div', 'excerpt', this.node);
    this._excerpt.hidden = true;
    this._frames = element('div', 'frames', this.node);
    this._frames.hidden = true;
    this._parts = PARTS.map(create => create(_trans, _actions.parts));
    this.node.append(...this._parts.map(part => part.node));
    this.node.addEventListener(TIME_SELECTED, event => {
      const [from, to] = (event as CustomEvent<[number, number]>).detail;
      event.stopPropagation();
      this._parts.forEach(part => part.select?.(from, to));
    });
    this._failure = element('div', 'failure', this.node);
    this._failure.setAttribute('role', 'alert');
    this._outputs = this._list('outputs');
    this._params = this._list('params');
    this._children = new ChildrenTable(_trans, child => void this._showLog(child, _actions));
    this._childLog = element('div', 'childLog');
    this._childLog.hidden = true;
    this.trialSlot = element('div', 'trialSlot');
    this.node.append(this._children.node, this._childLog, this.trialSlot);
    this._charts = new RunCharts(_trans);
    this._summary = new SummaryView(_trans);
    this._pictures = new PicturesRow(_trans, _actions.picture);
    this._log = new LogView(_trans, _actions.displays);
    this._files = new FilesList(_trans, _actions.files);
    this._details = new DetailsFold(_trans);
    this.slot = element('div', 'slot');
    this.slot.hidden = true;
    this._fold = element('details', 'fold') as HTMLDetailsElement;
    this._fold.open = true;
    element('summary', 'foldTitle', this._fold).textContent = _trans.__('Charts');
    this._fold.append(this._charts.node, this.slot, this._summary.node);
    this._fold.addEventListener('toggle', () => this._fold.open && _actions.unfolded());
    this.node.append(this._fold, this._pictures.node, this._log.node, this._files.node, this._details.node);
  }

  readonly node: HTMLElement;

  /** Where live charts take the place of the record's. */
  readonly slot: HTMLElement;

  /** Where the run of a trial is shown. */
  readonly trialSlot: HTMLElement;

  /** Live charts lie in the slot. */
  set hosting(on: boolean) {
    this._hosting = on;
    this.slot.hidden = !on;
  }

  update(record: IRunRecord, situation: ISituation): void {
    this._head(record, situation);
    this._drawPhases(record, record.kind === 'monitor' ? [] : shownSpans(spans(record, situation.since)));
    const waits = record.state === 'queued' || record.state === 'preparing';
    write(this._waiting, waits ? record.detail : '');
    const newer = record.schema > RECORD_SCHEMA;
    write(
      this._notice,
      newer
        ? this._trans.__(
            'Written by a newer jupyter-amltrain (schema %1, this page supports %2). Update it to see everything.',
            record.schema,
            RECORD_SCHEMA
          )
        : situation.notice
    );
    this._taken.hidden = !record.taken.line;
    write(this._takenLine, record.taken.line);
    write(this._takenItems, record.taken.items.join('\n'));
    write(this._notes, record.notes.join('\n'));
    drawLinks(this._doors, record.doors, this._trans);
    write(this._error, record.error || (record.state === 'canceled' ? record.detail : ''));
    drawExcerpt(this._excerpt, record.excerpt, this._trans);
    drawFrames(this._frames, record.frames, this._trans);
    this._parts.forEach(part => part.update(record));
    this.node.classList.toggle(SELECTABLE, this._parts.some(({ select }) => select !== undefined));
    // The user requested this end.
    this._error.classList.toggle('jp-mod-wished', record.state === 'canceled');
    write(this._failure, situation.failure);
    this._pairs(this._outputs, this._trans.__('Results'), record.outputs);
    // A dashboard shows only the charts; the run's own cell shows the rest.
    const whole = record.view !== 'dashboard' && record.kind !== 'monitor';
    this._pairs(this._params, this._trans.__('Parameters'), whole ? record.params : {});
    // A sweep has its board: its own process only waits for the trials.
    const { sweep } = record;
    if (sweep && !this._board) {
      this._board = new SweepBoardView(this._trans, text => this._actions.copy(text));
      this.trialSlot.before(this._board.node);
    }
    this._board?.update(sweep, { handle: record.handle, actions: situation.trials, opened: situation.openedTrial, canceling: situation.cancelingTrials });
    this._children.update(whole && !sweep ? record.children : [], record.children_hidden);
    this._childLog.hidden = this._childLog.hidden || !record.children.length;
    if (situation.since) {
      this._children.tick();
    }
    this._verdict.update(record);
    this._summary.update(record);
    this._interactive.hidden = !situation.interactive;
    this._load.hidden = !situation.loadable;
    const onlyTrials = sweep !== null && !sweep.own;
    if (this._hosting || sweep) {
      this._charts.node.hidden = true;
      this._summary.node.hidden = this._summary.node.hidden || onlyTrials;
    } else {
      this._charts.update(record);
    }
    this._pictures.update(whole ? record.pictures : [], record.pictures_hidden);
    if (whole) {
      this._log.update(record.log, record.displays, record.displays_hidden);
    }
    this._log.node.hidden = this._log.node.hidden || !whole || (onlyTrials && record.state !== 'failed');
    this._foldCharts(record.state === 'failed' && !sweep && record.view !== 'dashboard' && record.kind !== 'monitor');
    this._details.update(record, this._trackingText(record));
  }

  /** The node is on the page now: scroll positions can be set. */
  attached(): void {
    this._log.follow();
  }

  dispose(): void {
    this._board?.dispose();
    this._parts.forEach(part => part.dispose());
    this._charts.dispose();
    this._log.dispose();
  }

  /** In a failed run, the error and the log come first: the charts fold behind a summary, once. */
  private _foldCharts(hasFailed: boolean): void {
    const parts = [this._summary.node, this._charts.node, this.slot];
    this._fold.hidden = parts.every(part => part.hidden);
    if (hasFailed === this._folds) {
      return;
    }
    this._folds = hasFailed;
    this._fold.open = !hasFailed;
    this._fold.classList.toggle('jp-mod-foldable', hasFailed);
    // The order in the page is the reading order.
    if (hasFailed) {
      this._log.node.after(this._fold);
    } else {
      this._log.node.before(this._fold);
    }
  }

  /** The log of a child below the table; the same button takes it away. */
  private async _showLog(child: IChildRun, actions: IActions): Promise<void> {
    const node = this._childLog;
    if (!node.hidden && node.dataset.child === child.id) {
      node.hidden = true;
      return;
    }
    node.dataset.child = child.id;
    node.hidden = false;
    const title = element('div', 'logTitle');
    title.textContent = this._trans.__('Log of %1', child.name);
    const body = document.createElement('pre');
    body.className = 'jp-AmlTerminal';
    body.tabIndex = 0;
    body.textContent = this._trans.__('Reading the log…');
    node.replaceChildren(title, body);
    try {
      const lines = await actions.childLog(child.id);
      body.replaceChildren(...lines.flatMap(line => [...drawn(line), '\n']));
      if (!body.textContent?.trim()) {
        body.textContent = this._trans.__('The log is empty.');
      }
    } catch (error) {
      body.textContent = error instanceof Error ? error.message : String(error);
    }
    body.scrollTop = body.scrollHeight;
  }

  private _head(record: IRunRecord, situation: ISituation): void {
    const { state } = record;
    const hasEnded = TERMINAL.has(state);
    const requested = !hasEnded && (record.cancel_requested || situation.cancelClicked);
    let text: string = state;
    if (hasEnded && record.kind === 'monitor') {
      text = this._trans.__('stopped');
    } else if (hasEnded && state === 'failed' && record.reason && record.reason !== 'exit') {
      text = `${state} (${record.reason})`;
    } else if (hasEnded && record.exit_code) {
      text = this._trans.__('%1 (exit code %2)', state, record.exit_code);
    } else if (requested && record.kind !== 'monitor') {
      text = this._trans.__('%1, cancel requested', state);
    }
    if (record.attempt > 1) {
      text = this._trans.__('%1, attempt %2', text, record.attempt);
    }
    write(this._state, text);
    this._state.dataset.state = state;
    write(this._name, record.name);
    this._links.update(record, situation.trusted, situation.connected);
    const total = spans(record, situation.since).reduce((sum, span) => sum + span.seconds, 0);
    write(this._elapsed, total ? duration(total) : '');
    const detail = record.detail || record.handle;
    this._state.title = detail;
    const monitor = record.kind === 'monitor';
    this._cancel.hidden = hasEnded || record.done || !situation.cancellable;
    this._cancel.disabled = requested;
    const label = monitor
      ? this._trans.__('Stop')
      : requested
        ? this._trans.__('Cancel requested')
        : this._trans.__('Cancel');
    if (this._cancel.textContent !== label) {
      this._cancel.textContent = label;
      this._cancel.setAttribute('aria-label', `${label}: ${record.name}`);
    }
  }

  /** Segments true to scale; the last one of a run that has ended has the color of its state. */
  private _drawPhases(record: IRunRecord, found: ISpan[]): void {
    this._phases.hidden = !found.length;
    const total = found.reduce((sum, span) => sum + span.seconds, 0) || 1;
    while (this._phases.children.length > found.length) {
      this._phases.lastElementChild?.remove();
    }
    // The header has the duration of a run: the text of a single long phase would repeat it.
    const severalLabels = found.filter(({ seconds }) => seconds / total > MIN_LABELED_SHARE).length > 1;
    found.forEach((span, i) => {
      let part = this._phases.children[i] as HTMLElement | undefined;
      if (!part) {
        part = element('div', 'phase', this._phases);
        element('div', 'phaseBar', part);
        element('div', 'phaseText', part);
      }
      const label = `${span.name} ${duration(span.seconds)}`;
      const isLast = i === found.length - 1;
      part.dataset.phase = span.name;
      part.dataset.state = isLast && TERMINAL.has(record.state) ? record.state : '';
      part.title = label;
      part.classList.toggle('jp-mod-open', span.open);
      part.style.flexGrow = String(span.seconds / total);
      const isLabeled = severalLabels && span.seconds / total > MIN_LABELED_SHARE;
      write(part.lastElementChild as HTMLElement, isLabeled ? label : '');
    });
  }

  private _list(name: string): HTMLElement {
    return element('div', `pairs jp-AmlRun-${name}`, this.node);
  }

  private _pairs(node: HTMLElement, title: string, values: Record<string, unknown>): void {
    const names = Object.keys(values);
    const key = JSON.stringify(values);
    if (node.dataset.key === key) {
      return;
    }
    node.dataset.key = key;
    node.hidden = !names.length;
    node.replaceChildren();
    element('span', 'pairsTitle', node).textContent = title;
    for (const name of names.slice(0, 24)) {
      const pair = element('span', 'pair', node);
      element('span', 'key', pair).textContent = name;
      const value = values[name] as { error?: unknown } | unknown;
      const shown = element('span', 'value', pair);
      shown.textContent = json(value);
      shown.title = json(value, 2000);
    }
    if (names.length > 24) {
      element('span', 'pair', node).textContent = this._trans.__('and %1 more', names.length - 24);
    }
  }

  private _trackingText(record: IRunRecord): string {
    const { state, store, run_id } = record.tracking;
    if (!state || !run_id) {
      return '';
    }
    // The record is drawn and saved before the import has ended.
    if (state === 'pending') {
      return this._trans.__('Saving to MLflow');
    }
    if (state === 'imported') {
      return store ? this._trans.__('Saved to MLflow: run %1 in %2', run_id, store) : this._trans.__('Saved to MLflow: run %1', run_id);
    }
    return store
      ? this._trans.__('MLflow run %1 in %2: %3', run_id, store, state)
      : this._trans.__('MLflow run %1: %2', run_id, state);
  }

  private readonly _state: HTMLElement;
  private readonly _name: HTMLElement;
  private readonly _links: HeaderLinks;
  private readonly _details: DetailsFold;
  private readonly _elapsed: HTMLElement;
  private readonly _cancel: HTMLButtonElement;
  private readonly _interactive: HTMLButtonElement;
  private readonly _load: HTMLButtonElement;
  private readonly _verdict: VerdictView;
  private readonly _summary: SummaryView;
  private readonly _phases: HTMLElement;
  private readonly _notice: HTMLElement;
  private readonly _waiting: HTMLElement;
  private readonly _taken: HTMLElement;
  private readonly _takenLine: HTMLElement;
  private readonly _takenItems: HTMLElement;
  private readonly _notes: HTMLElement;
  private readonly _doors: HTMLElement;
  private readonly _error: HTMLElement;
  private readonly _excerpt: HTMLElement;
  private readonly _frames: HTMLElement;
  private readonly _parts: readonly IRecordPart[];
  private readonly _failure: HTMLElement;
  private readonly _outputs: HTMLElement;
  private readonly _params: HTMLElement;
  private readonly _children: ChildrenTable;
  private readonly _childLog: HTMLElement;
  /** Of a sweep. */
  private _board: SweepBoardView | null = null;
  private readonly _charts: RunCharts;
  private readonly _pictures: PicturesRow;
  private readonly _log: LogView;
  private readonly _files: FilesList;
  private readonly _fold: HTMLDetailsElement;
  private _folds = false;
  private _hosting = false;
}
