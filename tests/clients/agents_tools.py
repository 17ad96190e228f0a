"""An MCP server over stdin and stdout with two tools, for agents to find and to call."""
import json
import sys

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PARCEL = {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]}
TOOLS = [{"name": "parcel_state", "description": "Says where a parcel is.", "inputSchema": PARCEL},
         {"name": "parcel_picture", "description": "Shows a parcel.", "inputSchema": PARCEL}]


def result(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "parcels", "version": "1"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "parcel_state":
        return {"content": [{"type": "text", "text": f"Parcel {params['arguments']['parcel']} is in Oslo."}]}
    if method == "tools/call":
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PICTURE}]}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result(asked["method"], asked.get("params", {}))}), flush=True)
