"""Which node a conversation belongs to. The only place that decides it.

One node now, so the answer is always the node that asks. A weighted rendezvous hash over the nodes that Ray reports
alive goes here, and callers are written for the day when the answer is another node.
"""

from storage.checkpoints.keys import ConversationKey

NAMESPACE = "perdure"
CONTROLLER_NAME = "controller"
_GATEWAY_PREFIX = "gateway:"
THE_NODE = "0"


def node_of(key: ConversationKey) -> str:
    """The node that this conversation belongs to, at this moment."""
    del key  # every conversation is at home on the one node
    return THE_NODE


def gateway_name(node: str) -> str:
    """Name of the detached gateway actor of that node, in `NAMESPACE`."""
    return _GATEWAY_PREFIX + node
