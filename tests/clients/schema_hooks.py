"""For schemathesis: requests as it makes them, but none that asks for a million tokens."""
import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        for field, most in (("max_tokens", 16), ("max_completion_tokens", 16), ("max_output_tokens", 16), ("n", 4)):
            if type(body.get(field)) in (int, float) and most < body[field] < 2**31:
                body[field] = most
    return body
