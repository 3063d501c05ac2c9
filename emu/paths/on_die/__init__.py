"""Updates by processing elements on the flash dies. Source: OptimStore (HPCA 2023) and DeepStore
(MICRO 2019)."""
