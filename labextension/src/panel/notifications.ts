/** Notifications of runs that ended or need attention. */

import { Notification } from '@jupyterlab/apputils';
import type { INotice, IRunRow } from '../protocol';
import { elapsed, secondsOf } from '../sections/runText';
import { CommandIDs, IPanelContext, ITransition } from './tokens';

/** Durations in milliseconds. */
const AUTO_CLOSE_MS = 5000;
const SAME_TARGET_INTERVAL_MS = 60000;
/** Time in which runs that complete have one notification. */
const TOGETHER_MS = 1000;
/** Names in one notification at most. */
const MAX_NAMES = 5;

export function notifyTransitions(context: IPanelContext): void {
  const { app, model, trans, settings } = context;
  /** Notifications already shown: two notebooks may follow the same run, and a kernel may repeat a notice. */
  const shown = new Set<string>();
  /** Time at which a target was reported unreachable, in milliseconds since 1970: all its runs report this at once. */
  const unreachableSince = new Map<string, number>();

  /** Notifications with buttons, by the handle of their run. */
  const withButtons = new Map<string, string[]>();
  const keep = (row: IRunRow, id: string) => withButtons.set(row.handle, [...(withButtons.get(row.handle) ?? []), id]);

  const action = (label: string, id: string, handle: string): Notification.IAction[] =>
    app.commands.hasCommand(id) ? [{ label, callback: () => void app.commands.execute(id, { handle }) }] : [];
  const actions = (row: IRunRow) => [
    ...action(trans.__('Logs'), CommandIDs.runLogs, row.handle),
    ...action(trans.__('Dashboard'), CommandIDs.runOpen, row.handle)
  ];

  const timeOf = (row: IRunRow): string => {
    const seconds = secondsOf(row, Date.now() / 1000);
    return seconds === null ? '' : elapsed(seconds);
  };

  /** Runs that have just completed; trials of one cell often end together. */
  let completed: IRunRow[] = [];
  const showCompleted = () => {
    const rows = completed;
    completed = [];
    if (rows.length > 1) {
      const names = [...new Set(rows.map(({ name }) => name))];
      const named = names.slice(0, MAX_NAMES).join(', ') + (names.length > MAX_NAMES ? ', …' : '');
      Notification.success(trans.__('%1 runs completed: %2', rows.length, named), { autoClose: AUTO_CLOSE_MS });
      return;
    }
    for (const row of rows) {
      const took = timeOf(row);
      const text = took ? trans.__('%1 completed after %2', row.name, took) : trans.__('%1 completed', row.name);
      keep(row, Notification.success(text, { autoClose: AUTO_CLOSE_MS, actions: actions(row) }));
    }
  };

  const ended = (row: IRunRow) => {
    const took = timeOf(row);
    const { name } = row;
    switch (row.state) {
      case 'completed':
        if (completed.push(row) === 1) {
          setTimeout(showCompleted, TOGETHER_MS);
        }
        break;
      case 'canceled':
        Notification.info(took ? trans.__('%1 was canceled after %2', name, took) : trans.__('%1 was canceled', name), { autoClose: AUTO_CLOSE_MS });
        break;
      default: {
        if (row.reason === 'timeout') {
          const limit = took ? trans.__('%1 stopped: time limit reached after %2', name, took) : trans.__('%1 stopped: time limit reached', name);
          keep(row, Notification.error(limit, { autoClose: false, actions: actions(row) }));
          break;
        }
        const reason = row.error || row.attention || row.reason || row.detail;
        const lost = took ? trans.__('%1 is lost after %2', name, took) : trans.__('%1 is lost', name);
        const broke = took ? trans.__('%1 failed after %2', name, took) : trans.__('%1 failed', name);
        const what = row.state === 'lost' ? lost : broke;
        keep(row, Notification.error(reason ? `${what}. ${reason}` : what, { autoClose: false, actions: actions(row) }));
      }
    }
  };

  model.transition.connect((_, { row, what }: ITransition) => {
    if (row.parent) {
      return; // the board of the sweep shows its trials
    }
    const key = `${row.handle} ${row.created} ${what === 'ended' ? row.state : row.attention}`;
    if (shown.has(key)) {
      return;
    }
    shown.add(key);
    if (what === 'ended' && settings.notifyEnded) {
      if (!isOnScreen(row.handle)) {
        ended(row);
      }
    } else if (what === 'attention' && settings.notifyAttention) {
      if (row.reachable) {
        keep(row, Notification.warning(`${row.name}: ${row.attention}`, { autoClose: false, actions: actions(row) }));
      } else if (Date.now() - (unreachableSince.get(row.target) ?? 0) > SAME_TARGET_INTERVAL_MS) {
        unreachableSince.set(row.target, Date.now());
        Notification.warning(row.attention, { autoClose: false });
      }
    }
  });

  // A deleted run has neither a log nor a dashboard.
  model.runsChanged.connect(() => {
    if (!model.connection.ready) {
      return;
    }
    for (const [handle, ids] of withButtons) {
      if (!model.run(handle)) {
        ids.forEach(id => Notification.dismiss(id));
        withButtons.delete(handle);
      }
    }
  });

  model.notice.connect((_, { level, text }: INotice) => {
    const type = level === 'error' || level === 'warning' || level === 'success' ? level : 'info';
    Notification.emit(text, type, { autoClose: type === 'error' ? false : AUTO_CLOSE_MS });
  });
}

/** Whether an output or tab of a run is in sight, which shows its end. */
function isOnScreen(handle: string): boolean {
  return [...document.querySelectorAll<HTMLElement>('.jp-AmlRun[data-handle], .jp-AmlGroup tr[data-handle]')].some(node => {
    const { top, bottom, height } = node.getBoundingClientRect();
    return node.dataset.handle === handle && height > 0 && bottom > 0 && top < window.innerHeight;
  });
}
