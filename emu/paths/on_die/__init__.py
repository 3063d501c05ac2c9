"""Updates by processing elements on the flash dies. Source: OptimStore (DAC 2023), DeepStore."""
