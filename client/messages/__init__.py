"""Wire types: one definition per message, shared by nodes, clients and workers.

JSON and MessagePack carry the same structures. Requests refuse unknown fields by
name; answers may gain fields, which older clients ignore. Instants are RFC 3339
strings in views that people read (`…_at`) and integers of epoch milliseconds on the
worker path (`…_ms`). Identifiers are opaque strings; a fencing token is an integer
below 2**53 that only ever rises.
"""

from timeball.client.messages.changes import *
from timeball.client.messages.cluster import *
from timeball.client.messages.dead import *
from timeball.client.messages.events import *
from timeball.client.messages.executions import *
from timeball.client.messages.fields import *
from timeball.client.messages.jobs import *
from timeball.client.messages.options import *
from timeball.client.messages.queues import *
from timeball.client.messages.schedules import *
from timeball.client.messages.worker import *
