"""A client of HTTP/2, for servers that are to be hurt by one."""

import h2.connection
import h2.events
import h2.settings
import trio


class Http2:
    """A client of HTTP/2 without TLS that does only what it is told."""

    def __init__(self, stream: trio.SocketStream, window: int = 65_535) -> None:
        self.stream, self.http = stream, h2.connection.H2Connection()
        self.http.initiate_connection()
        self.http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    async def ask(self, body: bytes, path: str = "/v1/completions", ends: bool = True) -> int:
        number = self.http.get_next_available_stream_id()
        pseudo = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "x"}
        fields = pseudo | {"content-type": "application/json"}
        self.http.send_headers(number, list(fields.items()))
        self.http.send_data(number, body, end_stream=ends)
        await self.flush()
        return number

    async def flush(self) -> None:
        await self.stream.send_all(self.http.data_to_send())

    async def until(self, kind: type, number: int) -> bytes:
        """The data of a stream up to an event; what came for others is lost."""
        data = b""
        while True:
            received = await self.stream.receive_some()
            assert received, "the server hung up"
            for event in self.http.receive_data(bytes(received)):
                if isinstance(event, h2.events.DataReceived) and event.stream_id == number:
                    data += event.data
                if isinstance(event, kind) and event.stream_id == number:
                    return data
            await self.flush()
