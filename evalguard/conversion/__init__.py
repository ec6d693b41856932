"""Settings and build recipes: from a declared variant to a model that carries them.

``plan`` says what has to be done (pure data), ``building`` makes a model folder where there is a
recipe, ``apply`` edits the loaded model, ``readback`` proves that every setting took.
"""

from evalguard.conversion.planning import ConversionPlan, plan

__all__ = ["ConversionPlan", "plan"]
