"""What stand-ins for our programs tell psrun (common/base/tell.h)."""
import json
import shlex


def tell(event, **fields):
    """The words of a shell that tells an event."""
    line = shlex.quote(json.dumps({"event": event, **fields}))
    return f'echo {line} >"/dev/fd/${{PS_EVENTS%%:*}}"'
