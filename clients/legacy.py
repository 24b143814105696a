"""The client's side of the bridge to older servers: one line around a `Client`.

Older servers reach a client by `get_properties`, `fit` and `evaluate` alone. `SummaryClient`
answers the pre-round of `pncs_flower.strategies.legacy.LegacySelection` in the first, by training,
and then has `fit` return the update that it kept.
"""

import time
from copy import copy
from logging import ERROR
from typing import Any

from flwr import common
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.client import Client
from flwr.common import Code, Parameters, Status

from pncs_flower.messages.records import make_message
from pncs_flower.properties import pack_properties, unpack_properties
from pncs_flower.protocol import LOSS, MARKER, NUM_EXAMPLES, SUMMARY, WHOLE

from .client_fn import named
from .summary import SummaryMod, summary_mod

__all__ = ["SummaryClient"]

_NUMPY = "numpy.ndarray"
_METRICS = "fit-metrics"


class SummaryClient(Client):
    """Answer the pre-round of an older server on behalf of a client, which stays as it is.

    In a ``client_fn``: ``return SummaryClient(MyClient().to_client(), context)``. Mods of the app
    lie outside: the summary is that of the update before they clip it or add noise to it.

    Parameters
    ----------
    client : Client
        The app's client, such as ``MyNumPyClient().to_client()``.
    context : Context, optional (default: None)
        What Flower hands to ``client_fn``. The kept update lies in its state.
    name : str, optional (default: None)
        The client's own name, where no context has one: `start_client` gives all the same.
    mod : SummaryMod (default: summary_mod)
        What computes the summary, perhaps with a gradient of the app's own, or noise. Its gradient
        function gets a message with the records ``"arrays"`` and ``"config"``.
    """

    def __init__(
        self,
        client: Client,
        context: Context | None = None,
        *,
        name: str | None = None,
        mod: SummaryMod = summary_mod,
    ) -> None:
        if not isinstance(client, Client):
            raise TypeError(
                f"client is {type(client).__name__}, but must be a Client: call its to_client()"
            )
        if context is None and name is None:
            raise TypeError(
                "SummaryClient needs the context that client_fn is given, or, with start_client, "
                "a name of its own for each client: SummaryClient(client, name='hospital-a')"
            )
        self._client = client
        self._mod = mod
        self._context = Context(0, -1, {}, RecordDict(), {}) if context is None else copy(context)
        if name is not None:
            self._context.node_config = {"name": name}

    def get_properties(self, ins: common.GetPropertiesIns) -> common.GetPropertiesRes:
        """Answer the pre-round; any other question is for the app's client."""
        unpacked = unpack_properties(ins.config)
        if unpacked is None:
            return self._client.get_properties(ins)
        marker, arrays, config = unpacked
        kind = MessageType.EVALUATE if marker.get("kind") == LOSS else MessageType.TRAIN
        try:
            content = self._answer(kind, marker, config, arrays)
        # With start_client, an exception would end the client. The server is told what happened.
        except Exception as error:
            common.log(ERROR, "The pre-round failed.", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            return common.GetPropertiesRes(Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, reason), {})
        told = content.config_records.get(MARKER, ConfigRecord())
        summary = content.array_records.get(SUMMARY, ArrayRecord())
        arrays = {name: array.data for name, array in summary.items()}
        for array in content.array_records.get(WHOLE, ArrayRecord()).values():  # at most one
            arrays[WHOLE] = array.data
        answer = pack_properties(told, arrays, {})
        return common.GetPropertiesRes(Status(Code.OK, ""), answer)

    def fit(self, ins: common.FitIns) -> common.FitRes:
        """Return the update that was kept in this round's pre-round, or train."""
        unpacked = unpack_properties(ins.config)
        if unpacked is None:
            return self._client.fit(ins)
        marker, _, config = unpacked
        arrays = {str(place): data for place, data in enumerate(ins.parameters.tensors)}
        try:
            content = self._answer(MessageType.TRAIN, marker, config, arrays)
        except _FailedError as failure:
            return common.FitRes(failure.status, Parameters([], _NUMPY), 0, {})
        num_examples = int(str(content.metric_records["metrics"][NUM_EXAMPLES]))
        metrics = _scalars(content, _METRICS)
        return common.FitRes(Status(Code.OK, ""), _parameters(content), num_examples, metrics)

    def get_parameters(self, ins: common.GetParametersIns) -> common.GetParametersRes:
        """Have the app's client answer."""
        return self._client.get_parameters(ins)

    def evaluate(self, ins: common.EvaluateIns) -> common.EvaluateRes:
        """Have the app's client evaluate."""
        return self._client.evaluate(ins)

    def _answer(
        self, kind: str, marker: dict[str, Any], config: dict[str, Any], arrays: dict[str, bytes]
    ) -> RecordDict:
        """Have the mod answer the message that a client of a message strategy would get."""
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: _array(data) for name, data in arrays.items()}),
                "config": ConfigRecord({**config}),
                MARKER: ConfigRecord({**marker}),
            }
        )
        metadata = Metadata(
            run_id=self._context.run_id,
            message_id="",
            src_node_id=0,
            dst_node_id=self._context.node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=3600.0,
            message_type=kind,
        )
        message = make_message(metadata, content)  # there is no task whose message it could be
        return self._mod(message, self._context, self._call).content

    def _call(self, message: Message, context: Context) -> Message:
        """Have the app's client train or evaluate, as the app of a message strategy would."""
        parameters, config = _parameters(message.content), _scalars(message.content, "config")
        if message.metadata.message_type == MessageType.EVALUATE:
            evaluated = self._client.evaluate(common.EvaluateIns(parameters, config))
            if evaluated.status.code != Code.OK:
                raise _FailedError(evaluated.status)
            metrics = MetricRecord({LOSS: evaluated.loss, NUM_EXAMPLES: evaluated.num_examples})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        trained = self._client.fit(common.FitIns(parameters, config))
        if trained.status.code != Code.OK:
            raise _FailedError(trained.status)
        update = [_array(data) for data in trained.parameters.tensors]
        content = RecordDict(
            {
                "arrays": named(message.content.array_records["arrays"], update),
                "metrics": MetricRecord({NUM_EXAMPLES: trained.num_examples}),
                _METRICS: ConfigRecord({**trained.metrics}),
            }
        )
        return Message(content, reply_to=message)


class _FailedError(RuntimeError):
    """The app's client answered with a status that is not OK."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"the client answered with status {status.code.name}: {status.message}")
        self.status = status


def _array(data: bytes) -> Array:
    values = common.bytes_to_ndarray(data)
    return Array(dtype=str(values.dtype), shape=values.shape, stype=_NUMPY, data=data)


def _parameters(content: RecordDict) -> Parameters:
    arrays = content.array_records["arrays"]
    return Parameters([array.data for array in arrays.values()], _NUMPY)


def _scalars(content: RecordDict, name: str) -> dict[str, Any]:
    return {**content.config_records[name]}
