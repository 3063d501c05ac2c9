"""The update paths: what each strategy does with a training step, as plans of device commands."""
