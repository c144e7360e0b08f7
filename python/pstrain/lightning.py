"""Lightning's Trainer and Fabric over the process group "pstrain".

    import pstrain.lightning
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer

    Trainer(accelerator="cpu", devices=2, strategy="pstrain").fit(model, loader)
    Fabric(accelerator="cpu", devices=2, strategy="pstrain").launch()

    psrun -s 1 -w 2 -- python train.py
"""
from __future__ import annotations

import typing

import lightning.fabric.strategies as fabric  # type: ignore[import, unused-ignore]
import lightning.pytorch.plugins.environments as environments  # type: ignore[import, unused-ignore]
import lightning.pytorch.strategies as strategies  # type: ignore[import, unused-ignore]

from . import process_group

# Without types where mypy has no Lightning.
_Strategy: typing.Any = strategies.DDPStrategy
_FabricStrategy: typing.Any = fabric.DDPStrategy


class PstrainStrategy(_Strategy):  # type: ignore[misc]
    """DDPStrategy over the process group, with its options. The launcher (psrun, torchrun) starts all ranks, on any number
    of hosts, and Lightning none; without one Lightning says which of torchrun's variables it lacks."""

    strategy_name = "pstrain"

    def __init__(self, **options: typing.Any) -> None:
        options.setdefault("cluster_environment", environments.TorchElasticEnvironment())
        super().__init__(process_group_backend=process_group.NAME, **options)


class FabricStrategy(_FabricStrategy):  # type: ignore[misc]
    """The same for Fabric, whose Strategy is another class."""

    def __init__(self, **options: typing.Any) -> None:
        options.setdefault("cluster_environment", environments.TorchElasticEnvironment())
        super().__init__(process_group_backend=process_group.NAME, **options)


strategies.StrategyRegistry.register(PstrainStrategy.strategy_name, PstrainStrategy, override=True,
                                     description="DistributedDataParallel over the process group of pstrain")
fabric.STRATEGY_REGISTRY.register(PstrainStrategy.strategy_name, FabricStrategy, override=True,
                                  description="DistributedDataParallel over the process group of pstrain")
