/** Dialog with all options of a submit that the chosen target understands, in groups and with their help. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { IPanelContext } from '../panel/tokens';
import type { IComposeReply, IField } from '../protocol';
import { button, element, say, sayLine } from './dom';
import { same, Values } from './fields';
import { FieldForm } from './form';
import { FormDialog } from './formDialog';
import type { SubmitForm } from './submitForm';
import { Checker } from './targetActions';

/** Groups of the kernel in the order of the form. */
const GROUPS = ['what', 'params', 'where', 'data', 'sweep', 'advanced'];

/** Groups with their titles. */
function groups(trans: TranslationBundle): readonly (readonly [string, string])[] {
  const titles = [
    trans.__('What'),
    trans.__('Parameters'),
    trans.__('Where'),
    trans.__('Data and outputs'),
    trans.__('Sweep'),
    trans.__('Advanced')
  ];
  return GROUPS.map((group, at) => [group, titles[at]]);
}

/** Let the user edit the values of all options; `null`: canceled. */
export function editOptions(
  context: IPanelContext,
  form: SubmitForm,
  compose: (values: Values) => Promise<IComposeReply> | null
): Promise<Values | null> {
  return new Promise(resolve => {
    const { trans } = context;
    const options = new SubmitOptions(context, form, compose, values => end(values));
    const dialog = new FormDialog(options, trans.__('Options of the submit'), trans);
    const end = (values: Values | null) => {
      dialog.dispose();
      resolve(values);
    };
    dialog.canceled.connect(() => end(null));
    dialog.open();
    options.start();
  });
}

class SubmitOptions extends Widget {
  constructor(
    context: IPanelContext,
    private readonly _source: SubmitForm,
    compose: (values: Values) => Promise<IComposeReply> | null,
    private readonly _done: (values: Values | null) => void
  ) {
    super();
    const { trans, model } = context;
    this.addClass('jp-AmlNew');
    this.addClass('jp-AmlOptions');
    const values = _source.values();
    const target = typeof values.target === 'string' ? values.target : '';
    this._form = new FieldForm({
      fields: this._fieldsFor(target, values),
      trans,
      targets: model.targets,
      values,
      groups: groups(trans)
    });
    this._form.addClass('jp-AmlNew-form');
    this._checker = new Checker<IComposeReply>(() => compose(this._form.values()));
    this._checker.answered.connect((_, { line, errors }) => {
      this._form.setErrors(errors);
      sayLine(this._line, line);
      this._line.hidden = line === '';
    });
    this._checker.failed.connect((_, text) => this._form.setErrors({ '': text }));
    this._form.changed.connect(() => {
      this._turn();
      this._checker.soon();
    });
    this._form.submitted.connect(() => void this._finish());
    this._form.canceled.connect(() => _done(null));
    this._line.hidden = true;
    const cancel = button(trans.__('Cancel'), 'reject', () => _done(null));
    const apply = button(trans.__('Apply'), 'accept', () => void this._finish());
    const lead = element('div', 'jp-AmlForm-help');
    say(lead, trans.__('Only the options that the target understands are listed.'));
    this.node.append(
      element('h3', 'jp-AmlNew-title', trans.__('Options of the submit')),
      lead,
      this._form.node,
      element('div', 'jp-AmlNew-foot', '', this._line, element('div', 'jp-AmlForm-buttons', '', cancel, apply))
    );
  }

  /** Focus the first field and show the line. */
  start(): void {
    this._form.focus();
    void this._checker.now();
  }

  dispose(): void {
    this._checker.dispose();
    this._form.dispose();
    super.dispose();
  }

  /** Fields for a target in the order of their groups. */
  private _fieldsFor(target: string, values: Values): IField[] {
    const at = (field: IField) => GROUPS.indexOf(field.group);
    return [...this._source.fieldsFor(target, values)].sort((a, b) => at(a) - at(b));
  }

  /** List the options of the target that is chosen now. */
  private _turn(): void {
    const values = this._form.values();
    const fields = this._fieldsFor(typeof values.target === 'string' ? values.target : '', values);
    // A list of chips with a text that is not complete would lose the focus.
    if (!same(fields.map(field => field.name), this._form.fields.map(field => field.name))) {
      this._form.setFields(fields);
    }
  }

  /** Apply the values, or show what is wrong with them. */
  private async _finish(): Promise<void> {
    const reply = await this._checker.now();
    if (this.isDisposed) {
      return;
    }
    const names = new Set(this._form.fields.map(field => field.name));
    const errors = Object.fromEntries(Object.entries(reply?.errors ?? {}).filter(([name]) => names.has(name)));
    if (Object.keys(errors).length > 0) {
      this._form.setErrors(errors, true);
    } else {
      this._done(this._form.values());
    }
  }

  private readonly _form: FieldForm;
  private readonly _checker: Checker<IComposeReply>;
  private readonly _line = element('code', 'jp-AmlLine jp-AmlNew-preview');
}
