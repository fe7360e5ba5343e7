"""The route of the changes of many documents: one stream of server-sent events."""

from __future__ import annotations

from litestar import get
from litestar.response import Stream

from everlog.server.documents import changes_sent, documents_of
from everlog.server.requests import AnyRequest, parameters
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import TEXT, answer, header, operation, query
from everlog.server.security.guard import in_body
from everlog.server.security.principal import principal_of
from everlog.server.sse import stream_answer


@get(
    "/hyper-storage/feed",
    opt={"paths": in_body},  # each event is checked
    name="changes.get",
    operation_class=operation(
        query("prefix", "Only of paths below this one, which may be a collection: `shop/orders~`"),
        query("template", "Only of paths that match: `shop/{*}~/{*}`"),
        query("filter", "Only what leads to a body that matches, and deletions: `total > 10`"),
        query("after", "Go on behind this position, for clients that cannot set headers; `0`: from the beginning"),
        header("Last-Event-ID", "Go on behind this position"),
        answers={200: answer("Changes as they come", TEXT, examples=examples.CHANGES)},
        refusals=(409, 504),
    ),
)
async def get_changes(request: AnyRequest) -> Stream:
    """The changes of many documents as they come, as server-sent events."""
    given, principal = parameters(request), principal_of(request)
    after = request.headers.get("last-event-id", given.get("after"))
    stream = await documents_of(request).open_changes(
        given.get("prefix", ""),
        template=given.get("template"),
        filter=given.get("filter", ""),
        after=after,
        readable=lambda path: principal.may_reach("read", path),
    )
    return stream_answer(lambda: changes_sent(request, stream))


CHANGE_STREAM_ROUTES = [get_changes]
