"""Number of fields in an encoded protobuf message, counted before the message is parsed.

An empty message of two bytes becomes an object of about 90 bytes, so a request of a few MiB could take hundreds of MiB.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

MAX_VARINT_BYTES = 10


def has_more_fields(body: bytes, message: Descriptor, limit: int) -> bool:
    """Return whether `body`, a `message`, has more than `limit` fields, those of its inner messages included.

    The result is True, too, for a body that is not well-formed or has groups, which A2A does not use: the parser could
    make many objects of it before it refuses it.
    """
    count = 0
    pending = [(0, len(body), message)]
    try:
        while pending:
            position, end, message = pending.pop()
            while position < end:
                count += 1
                if count > limit:
                    return True
                tag, position = _read_varint(body, position)
                match tag & 7:
                    case 0:  # a varint
                        _, position = _read_varint(body, position)
                    case 1:  # 64 bits
                        position += 8
                    case 2:  # a length and as many bytes
                        size, position = _read_varint(body, position)
                        field = message.fields_by_number.get(tag >> 3)
                        if field is not None and field.message_type is not None:
                            pending.append((position, position + size, field.message_type))
                        position += size
                    case 5:  # 32 bits
                        position += 4
                    case _:
                        return True
                if position > end:
                    return True
    except (IndexError, ValueError):
        return True
    return False


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it.

    Raises:
        IndexError: The body ends within the number.
        ValueError: The number is longer than protobuf allows.
    """
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a varint of more than ten bytes")
