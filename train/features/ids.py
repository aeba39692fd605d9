"""Id, combo and bool mask features: always ids."""

from emberline.train.features.common import Context, assemble, check_table, check_value_dim, source
from emberline.train.features.configs import ComboFeatureConfig, IdFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.inputs import inputs_of
from emberline.train.features.rows import growth_of, kind_of, rows_and_encoder
from emberline.train.features.sentences import Absence
from emberline.train.features.sequence_configs import IdConfig


def id_feature(config: IdConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    if isinstance(config, ComboFeatureConfig) and not config.expression and not context.encoded:
        problems.append(Absence("expression is missing: list the columns to cross, each as side:column"))
    where = source(config, inputs_of(config), context, problems)
    check_table(config, kind_of(config), problems)
    value_dim = config.value_dim if config.value_dim is not None else int(context.steps is not None)
    check_value_dim(value_dim, 0, problems)
    found = rows_and_encoder(config, context, problems)
    if problems or found is None:
        return None
    rows, encoder = found
    return assemble(
        config,
        where,
        context,
        encoder=encoder,
        value_dim=value_dim,
        default=config.default_value,
        rows=rows,
        zch=config.zch,
        dynamicemb=growth_of(config),
        weighted=isinstance(config, IdFeatureConfig) and config.weighted,
    )
