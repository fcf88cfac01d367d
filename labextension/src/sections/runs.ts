/** Runs section: filter, list, and details of the selected run. */

import { PanelWithToolbar } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { sectionLayoutOf } from '../panel/accordionLayout';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import { button, element, say } from './dom';
import { RunDetail } from './runDetail';
import { filterRuns, StateFilter } from './runText';
import { RunsList } from './runsList';

/** Minimum heights of the section in pixels, without and with the details of a run. */
const MINIMUM_PX = 170;
const MINIMUM_DETAIL_PX = 300;

const SECOND_MS = 1000;

export class RunsSection extends PanelWithToolbar {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans, model } = _context;
    this.addClass('jp-AmlRuns');
    this.title.label = trans.__('Runs');
    this.title.caption = trans.__('Live and past training runs');
    this._filter = this._makeFilter();
    this._list = new RunsList(trans, {
      open: handle => this._execute(CommandIDs.runOpen, { handle }),
      remove: handles => this._execute(CommandIDs.runDelete, { handles: [...handles] })
    });
    this._empty = new Widget();
    this._empty.addClass('jp-AmlRuns-empty');
    this._detail = new RunDetail(_context);
    this.addWidget(this._filter);
    this.addWidget(this._makeColumns());
    this.addWidget(this._list);
    this.addWidget(this._empty);
    this.addWidget(this._detail);
    this._list.inView.connect((_, handles) => model.details(handles));
    selection.changed.connect(this._draw, this);
    model.runsChanged.connect(this._draw, this);
    model.connectionChanged.connect(this._draw, this);
    this._draw();
  }

  dispose(): void {
    clearInterval(this._timer);
    selection.changed.disconnect(this._draw, this);
    this._context.model.runsChanged.disconnect(this._draw, this);
    this._context.model.connectionChanged.disconnect(this._draw, this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._see(this.isVisible);
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._see(true);
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._see(false);
  }

  protected onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this._see(false);
  }

  private _see(shown: boolean): void {
    this._list.seen = shown;
    clearInterval(this._timer);
    this._timer = shown ? setInterval(() => this._detail.tick(), SECOND_MS) : undefined;
    if (shown) {
      this._draw();
    } else {
      this._context.model.details([]);
    }
  }

  private _execute(id: string, args: { handle: string } | { handles: string[] }): void {
    const { commands } = this._context.app;
    if (commands.hasCommand(id)) {
      void commands.execute(id, args);
    }
  }

  private _makeFilter(): Widget {
    const { trans } = this._context;
    this._words = element('input', 'jp-AmlRuns-words jp-mod-styled');
    this._words.type = 'search';
    this._words.placeholder = trans.__('Filter');
    this._words.title = trans.__('Filter by name, handle, target, state, experiment or parameters (lr=0.1)');
    this._words.setAttribute('aria-label', trans.__('Filter runs'));
    this._words.addEventListener('input', () => this._draw());
    this._state = element('select', 'jp-AmlRuns-states');
    this._state.setAttribute('aria-label', trans.__('Filter by state'));
    const options: [StateFilter, string][] = [
      ['all', trans.__('All')],
      ['live', trans.__('Live')],
      ['failed', trans.__('Failed')]
    ];
    options.forEach(([value, label]) => this._state.append(new Option(label, value)));
    this._state.addEventListener('change', () => this._draw());
    this._count = element('span', 'jp-AmlRuns-count');
    this._count.setAttribute('aria-live', 'polite');
    const created = new Widget();
    created.addClass('jp-AmlRuns-filter');
    created.node.append(this._words, this._state, this._count);
    return created;
  }

  /** Create the titles of the columns, shown while the list has columns. */
  private _makeColumns(): Widget {
    const { trans } = this._context;
    const titles: [string, string][] = [
      ['name', trans.__('Name')],
      ['progress', trans.__('State')],
      ['metric', trans.__('Metric')],
      ['params', trans.__('Parameters that differ')],
      ['target', trans.__('Target')],
      ['when', trans.__('Age')]
    ];
    const created = new Widget();
    created.addClass('jp-AmlRuns-columns');
    // A screen reader hears the row's sentence.
    created.node.setAttribute('aria-hidden', 'true');
    created.node.append(...titles.map(([name, title]) => element('span', `jp-AmlRuns-${name}`, title)));
    created.hide();
    this._list.wideChanged.connect((_, wide) => created.setHidden(!wide));
    return created;
  }

  private _draw(): void {
    const { model, trans } = this._context;
    const all = model.runs;
    const shown = filterRuns(all, this._words.value, this._state.value as StateFilter);
    this._list.runs = shown;
    const total = all.length + model.more;
    say(this._count, shown.length === total ? `${total}` : trans.__('%1 of %2', shown.length, total));
    this._count.title = model.more
      ? trans._n('%1 older run is hidden. To list it: %aml_runs list -n 0', '%1 older runs are hidden. To list them: %aml_runs list -n 0', model.more)
      : trans._n('%1 run', '%1 runs', total, total);
    this._filter.setHidden(all.length === 0);
    this._list.setHidden(shown.length === 0);
    this._drawEmpty(all.length, shown.length);
    // Remove the handles of deleted runs from the selection.
    selection.runs = selection.runs.filter(handle => model.run(handle) !== undefined);
    this._detail.refresh();
    sectionLayoutOf(this.parent)?.setMinimum(this, this._detail.isHidden ? MINIMUM_PX : MINIMUM_DETAIL_PX);
  }

  private _drawEmpty(all: number, shown: number): void {
    const { trans, app } = this._context;
    const what = shown > 0 ? '' : all > 0 ? 'filtered' : 'none';
    this._empty.setHidden(what === '');
    if (what === this._emptiness) {
      return;
    }
    this._emptiness = what;
    if (what === 'filtered') {
      const clear = button(trans.__('Clear filter'), 'reject', () => {
        this._words.value = '';
        this._state.value = 'all';
        this._draw();
      });
      this._empty.node.replaceChildren(element('div', '', trans.__('No runs match.')), clear);
    } else if (what === 'none') {
      const nodes: Node[] = [
        element('div', 'jp-AmlRuns-emptyTitle', trans.__('No runs yet')),
        element('div', '', trans.__('Start a cell with this line, or let the panel add it:')),
        element('code', '', '%%aml_submit')
      ];
      if (app.commands.hasCommand(CommandIDs.submitCell)) {
        nodes.push(
          button(trans.__('Submit active cell…'), 'accept', () => void app.commands.execute(CommandIDs.submitCell))
        );
      }
      this._empty.node.replaceChildren(...nodes);
    }
  }

  private readonly _filter: Widget;
  private readonly _list: RunsList;
  private readonly _empty: Widget;
  private readonly _detail: RunDetail;
  private _words!: HTMLInputElement;
  private _state!: HTMLSelectElement;
  private _count!: HTMLElement;
  private _emptiness = '-';
  private _timer: ReturnType<typeof setInterval> | undefined;
}
