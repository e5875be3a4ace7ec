"""Configuration of the runtime: `memplane.yaml` and the environment."""

from memplane.runtime.config.load import RuntimeConfig, load_runtime_config, load_runtime_config_file

__all__ = ["RuntimeConfig", "load_runtime_config", "load_runtime_config_file"]
