"""Integrations that record training frameworks: one module per library, imported only with it.

Their hooks call a `recorder.TrainingRecorder`, guarded by `hooks`, so that no error of radt reaches
the training. `radt.autolog` switches on those of the libraries that a script imports.
"""
