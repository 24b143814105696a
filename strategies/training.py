"""The messages that ask the chosen clients for their full updates."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict

from pncs_flower.protocol import KEPT, TRAIN

from .exchange import marked, message_like

__all__ = ["TrainingMessages"]

Marker = Mapping[str, int]


@dataclass(frozen=True)
class TrainingMessages:
    """What is sent to the chosen, and what to those that have lost their update meanwhile.

    Attributes
    ----------
    first : dict of str to Message
        One for each chosen client. One that keeps the update of this round's pre-round gets no
        weights.
    whole : dict of str to Message
        The same with the weights, for every client.
    """

    first: dict[str, Message]
    whole: dict[str, Message]

    @classmethod
    def after_pre_round(
        cls, template: Message, chosen: Mapping[str, int], keeping: Container[str], marker: Marker
    ) -> "TrainingMessages":
        """Make them from the one message that the pre-round was held with.

        Parameters
        ----------
        template : Message
            The base strategy's.
        chosen : mapping of str to int
            Node ids of the chosen clients, by key.
        keeping : container of str
            Clients that keep their update.
        marker : mapping of str to int
            The round and the seed.
        """
        content = marked(template.content, TRAIN, marker)
        bare = marked(RecordDict(), TRAIN, {**marker, KEPT: True})
        whole = {c: message_like(template, node_id, content) for c, node_id in chosen.items()}
        first = {
            client: message_like(template, node_id, bare) if client in keeping else whole[client]
            for client, node_id in chosen.items()
        }
        return cls(first, whole)

    @classmethod
    def without_pre_round(
        cls, templates: Sequence[Message], chosen: Mapping[str, int], marker: Marker
    ) -> "TrainingMessages":
        """Make them from the base strategy's own, of which it may have another for each client."""
        by_node = {message.metadata.dst_node_id: message for message in templates}
        whole = {
            client: message_like(
                by_node[node_id], node_id, marked(by_node[node_id].content, TRAIN, marker)
            )
            for client, node_id in chosen.items()
            if node_id in by_node
        }
        return cls(whole, whole)
