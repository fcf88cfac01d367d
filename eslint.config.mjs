import js from '@eslint/js';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['**/lib/**', 'build/**', 'jupyter_amltrain/**', 'node_modules/**', '.venv/**'] },
  js.configs.recommended,
  ...ts.configs.recommended,
  {
    files: ['labextension/**/*.ts'],
    rules: {
      '@typescript-eslint/no-explicit-any': 'off',
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ],
      eqeqeq: 'error',
      'prefer-arrow-callback': 'error'
    }
  }
);
