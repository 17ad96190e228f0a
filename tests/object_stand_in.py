#!/usr/bin/env python3
"""A small S3 server for tests, with faults on demand: object_stand_in.py [--port N] [--dir FOLDER] ...

Path and virtual-host style; PutObject, CopyObject, GetObject (ranges), HeadObject, DeleteObject, ListObjectsV2; If-Match and If-None-Match on
each, checked and done under one lock, so of two writers of one version one wins. Every request's signature is checked by this file's own HMAC
(AWS Signature Version 4), and so is the SHA-256 of a body that was announced. ETags are MD5, as AWS's are.
With --dir the objects lie in that folder and outlive kill -9; without it in a folder that goes with the process.
The first line of stdout is "listening on PORT".

From Python: `with StandIn(directory=..., key=..., ...) as store:` runs one in this process; store.url, store.endpoint, store.env, store.faults(...).
As a process: start(["--dir", ...]) -> Process with the same calls; .process.kill(), SIGSTOP and the like are the test's.

Control, by HTTP and without a signature:
  PUT    /_faults        a JSON list of faults, in the place of those before; the first that fits a request is done
  GET    /_faults        the list, with what is left of `times`;  DELETE /_faults  none
  GET    /_log           the requests so far: [{"method", "key", "query", "status", "fault", "headers", "bytes", "at"}];  DELETE /_log
  GET    /_objects       {key: {"etag", "bytes", "meta", "modified"}}
  PUT    /_credentials   {"key", "secret", "token"}: valid from now on
  PUT    /_clock         {"ahead_s": N, "checked": false}: of the server's clock; whether requests of another time are refused
A fault: {"do": KIND, "method": "PUT", "key": REGEX, "list": true (lists alone), "times": 1 (-1 = always), "after": N (spare the first N)} and
  status      "status": 503, "code": "SlowDown", "body_bytes": N, "headers": {...}: this answer, nothing done
  close, reset             the connection ends, nothing done;      close_after, reset_after   the write is done, no answer comes
  hang, hang_after         "s": 60: silence, then the connection ends; nothing done, done
  wait, wait_after         "s": silence before, after the deed, then the answer
  slow        "bps": 1024: the answer's body at that rate;         slow_in    the request's body is taken at that rate
  truncate    "at": N: the body ends there, the length says more;  flip       "at": N: a bit of the body is another
  stale       the version before the newest, with its ETag;        stale_body the body before, with the newest ETag and metadata
  headers     "bytes": N of headers too many;                      endless    a body without end and without length
  text        "text", "status": 200, "type": a body of one's own;  garbage    bytes that are no HTTP
  blind       conditions are not looked at;                        racy       "s": looked at first, done later, without a lock
  bare        If-Match wants the ETag without quotes
  no_304, no_delete_condition, long_etag ("bytes"), no_etag, copy_late (CopyObject: 200 with an error in its body)
"""
import argparse
import base64
import datetime
import email.utils
import hashlib
import hmac
import http.server
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

PIECE = 1 << 20
NO_BODY = hashlib.sha256(b"").hexdigest()


def encoded(text, safe=""):
    return urllib.parse.quote(text, safe="-_.~" + safe)


def canonical_query(query):
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    return "&".join(f"{k}={v}" for k, v in sorted((encoded(k), encoded(v)) for k, v in pairs))


def signature(secret, method, path, query, headers, signed, payload, date, scope):
    """Of AWS Signature Version 4. path: decoded; headers: lower-case names; signed: names in order; scope: [day, region, service, end]."""
    lines = [method, encoded(path, "/"), canonical_query(query)]
    lines += [f"{name}:{' '.join(headers[name].split())}" for name in signed]
    lines += ["", ";".join(signed), payload]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = ("AWS4" + secret).encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, f"AWS4-HMAC-SHA256\n{date}\n{'/'.join(scope)}\n{digest}".encode(), hashlib.sha256).hexdigest()


class Refused(Exception):
    def __init__(self, status, code, message="", headers=None):
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message or code, headers or {}


class Gone(Exception):
    """The connection ends without an answer."""


class Objects:
    """Objects as files of a folder: a line of JSON, then the body. The version before the newest stays, for `stale`."""

    def __init__(self, folder):
        self.folder, self.lock, self.index, self.count = folder, threading.RLock(), {}, 0
        for name in os.listdir(folder):
            if name.endswith(".object"):
                with open(os.path.join(folder, name), "rb") as f:
                    head = json.loads(f.readline())
                    head["at"] = f.tell()
                self.index[head["key"]] = head
            elif ".part" in name:
                os.unlink(os.path.join(folder, name))

    def path(self, key, kind="object"):
        return os.path.join(self.folder, f"{hashlib.sha256(key.encode()).hexdigest()}.{kind}")

    def part(self):
        with self.lock:
            self.count += 1
            return os.path.join(self.folder, f"{self.count}.part")

    def commit(self, key, part, etag, meta, now):
        """The bytes of the file `part` become the object. Under the caller's lock, if it has one."""
        size = os.path.getsize(part)
        head = {"key": key, "etag": etag, "bytes": size, "meta": meta, "modified": now}
        whole = part + ".whole"
        with open(whole, "wb") as out, open(part, "rb") as body:
            out.write(json.dumps(head).encode() + b"\n")
            head["at"] = out.tell()
            shutil.copyfileobj(body, out, PIECE)
        os.unlink(part)
        with self.lock:
            if key in self.index:
                os.replace(self.path(key), self.path(key, "before"))
            os.replace(whole, self.path(key))
            self.index[key] = head
        return head

    def remove(self, key):
        with self.lock:
            if self.index.pop(key, None):
                os.replace(self.path(key), self.path(key, "before"))

    def open(self, key):
        with self.lock:
            head = self.index.get(key)
            return (head, open(self.path(key), "rb")) if head else (None, None)

    def before(self, key):
        try:
            f = open(self.path(key, "before"), "rb")
        except FileNotFoundError:
            return None, None
        head = json.loads(f.readline())
        head["at"] = f.tell()
        return head, f


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, server_version, sys_version = "HTTP/1.1", "StandIn", ""
    disable_nagle_algorithm = True
    timeout = 120

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(self.server.store.now(), usegmt=True)

    def do(self):
        store = self.server.store
        self.fault, self.sent, self.taken, self.key, self.query, self.answered = {}, 0, 0, "", "", None
        try:
            raw_path, _, self.query = self.path.partition("?")
            if raw_path.startswith("/_"):
                return self.control(raw_path)
            path = urllib.parse.unquote(raw_path)
            host = self.headers.get("Host", "").partition(":")[0]
            virtual = host.startswith(store.bucket + ".")
            bucket, _, self.key = (store.bucket, None, path[1:]) if virtual else path[1:].partition("/")
            self.parameters = dict(urllib.parse.parse_qsl(self.query, keep_blank_values=True))
            self.fault = store.fault_of(self.command, self.key, "list-type" in self.parameters)
            self.before_deed()
            try:
                self.authorise(path)
                if bucket != store.bucket:
                    raise Refused(404, "NoSuchBucket")
                self.serve()
            except Refused as r:
                self.refuse(r)
        except (Gone, BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError):
            self.close_connection = True
        finally:
            store.note(self)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do

    # ---- faults ----

    def end(self, reset):
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone

    def before_deed(self):
        f, do = self.fault, self.fault.get("do")
        if do in ("close", "reset"):
            self.end(do == "reset")
        if do == "hang":
            self.server.store.sleep(f.get("s", 60))
            self.end(False)
        if do == "wait":
            self.server.store.sleep(f.get("s", 1))
        if do == "garbage":
            self.wfile.write(b"\x00\xff" * 500 + b"\r\n\r\n")
            self.end(False)
        if do == "status":
            self.drain()
            status, code = f.get("status", 503), f.get("code", "SlowDown")
            body = f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{f.get('message', 'a fault of the test')}</Message></Error>".encode()
            self.answer(status, {**f.get("headers", {}), "Content-Type": "application/xml"}, body + b" " * f.get("body_bytes", 0))
            raise Gone if f.get("close") else Answered
        if do == "text":
            self.drain()
            self.answer(f.get("status", 200), {"Content-Type": f.get("type", "application/xml")}, f.get("text", "").encode())
            raise Answered

    def after_deed(self):
        f, do = self.fault, self.fault.get("do")
        if do in ("close_after", "reset_after"):
            self.end(do == "reset_after")
        if do in ("hang_after", "wait_after"):
            self.server.store.sleep(f.get("s", 60))
            if do == "hang_after":
                self.end(False)

    # ---- bytes ----

    def pieces(self):
        left = int(self.headers.get("Content-Length", 0))
        bps = self.fault.get("bps", 1024) if self.fault.get("do") == "slow_in" else 0
        while left:
            piece = self.rfile.read(min(left, bps // 10 or PIECE))
            if not piece:
                raise Gone
            left -= len(piece)
            self.taken += len(piece)
            yield piece
            if bps:
                self.server.store.sleep(len(piece) / bps)

    def drain(self):
        for _ in self.pieces():
            pass

    def take(self):
        """The request's body in a file; its SHA-256 and MD5."""
        sha, md5, part = hashlib.sha256(), hashlib.md5(), self.server.store.objects.part()
        try:
            with open(part, "wb") as out:
                for piece in self.pieces():
                    out.write(piece)
                    sha.update(piece)
                    md5.update(piece)
        except BaseException:
            os.unlink(part)
            raise
        return part, sha.hexdigest(), md5.hexdigest()

    def answer(self, status, headers, body=b"", f=None, n=None, at=0):
        """body, or n bytes of the open file f from `at` on."""
        do, fault = self.fault.get("do"), self.fault
        n = len(body) if f is None else n
        self.answered = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if do == "headers":
            for i in range(0, fault.get("bytes", 1 << 20), 1000):
                self.send_header(f"x-amz-meta-f{i}", "x" * 980)
        if do == "endless":
            self.send_header("Connection", "close")
        elif status not in (204, 304):
            self.send_header("Content-Length", str(n))
        self.end_headers()
        if self.command == "HEAD" or status in (204, 304):
            return
        if do == "endless":
            while True:
                self.wfile.write(b"x" * 65536)
                self.sent += 65536
        end = min(n, fault.get("at", 0)) if do == "truncate" else n
        bps = fault.get("bps", 1024) if do == "slow" else 0
        if f:
            f.seek(at)
        while self.sent < end:
            size = min(end - self.sent, max(1, bps // 10) if bps else PIECE)
            piece = f.read(size) if f else body[self.sent:self.sent + size]
            if do == "flip" and self.sent <= fault.get("at", 0) < self.sent + len(piece):
                piece = bytearray(piece)
                piece[fault.get("at", 0) - self.sent] ^= 4
            self.wfile.write(piece)
            self.sent += len(piece)
            if bps:
                self.server.store.sleep(len(piece) / bps)
        if end < n:
            raise Gone

    def refuse(self, r):
        if not self.taken:
            self.drain()
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{r.code}</Code><Message>{escape(r.message)}</Message><Resource>/{escape(self.key)}</Resource><RequestId>T{time.time_ns()}</RequestId></Error>'
        self.answer(r.status, {**r.headers, "Content-Type": "application/xml"}, b"" if self.command == "HEAD" else body.encode())

    # ---- signatures ----

    def authorise(self, path):
        store, lower = self.server.store, {k.lower(): v for k, v in self.headers.items()}
        m = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
                         lower.get("authorization", ""))
        if not m:
            raise Refused(403, "AccessDenied", "no signature of version 4")
        key, day, region, service, names, given = m.groups()
        signed = names.split(";")
        payload, date = lower.get("x-amz-content-sha256"), lower.get("x-amz-date", "")
        if key != store.key:
            raise Refused(403, "InvalidAccessKeyId")
        if lower.get("x-amz-security-token", "") != store.token:
            raise Refused(403, "InvalidToken" if store.token else "AccessDenied", "the session token is another")
        if (region, service) != (store.region, "s3"):
            raise Refused(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{store.region}'")
        if not payload:
            raise Refused(400, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        if not set(signed) <= set(lower):
            raise Refused(403, "SignatureDoesNotMatch", f"signed headers that did not come: {sorted(set(signed) - set(lower))}")
        must = {"host"} | {n for n in lower if n.startswith("x-amz-")}
        if signed != sorted(signed) or not must <= set(signed):
            raise Refused(403, "AccessDenied", f"There were headers present in the request which were not signed: {sorted(must - set(signed))}")
        try:
            then = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
        except ValueError:
            raise Refused(403, "AccessDenied", "x-amz-date")
        if store.clock_checked and abs(then - store.now()) > 900:
            raise Refused(403, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")
        right = signature(store.secret, self.command, path, self.query, lower, signed, payload, date, [day, region, service, "aws4_request"])
        if day != date[:8] or not hmac.compare_digest(right, given):
            raise Refused(403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
        self.payload = payload

    # ---- deeds ----

    def check(self, head, match="If-Match", none_match="If-None-Match", read=False):
        """RFC 9110's two conditions, as S3 answers them."""
        if self.fault.get("do") == "blind":
            return
        etags = [e.strip() for e in self.headers.get(match, "").split(",") if e.strip()]
        if self.fault.get("do") == "bare":
            etags = [f'"{e}"' for e in etags]
        others = [e.strip() for e in self.headers.get(none_match, "").split(",") if e.strip()]
        if etags and not head and not read:
            raise Refused(404, "NoSuchKey")
        if etags and not (head and ("*" in etags or head["etag"] in etags)):
            raise Refused(412, "PreconditionFailed")
        if others and head and ("*" in others or head["etag"] in others):
            if read and self.fault.get("do") != "no_304":
                raise Refused(304, "NotModified", headers={"ETag": head["etag"]})
            if not read:
                raise Refused(412, "PreconditionFailed")

    def meta(self):
        kept = ("content-type", "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id", "x-amz-tagging")
        return {k.lower(): v for k, v in self.headers.items() if k.lower() in kept or k.lower().startswith("x-amz-meta-")}

    def etag(self, digest):
        return f'"{digest}{"0" * self.fault.get("bytes", 200)}"' if self.fault.get("do") == "long_etag" else f'"{digest}"'

    def head_of(self, head):
        out = {k: v for k, v in head["meta"].items() if k != "x-amz-tagging"}
        out.update({"ETag": head["etag"], "Last-Modified": email.utils.formatdate(head["modified"], usegmt=True), "Accept-Ranges": "bytes"})
        if self.fault.get("do") == "no_etag":
            del out["ETag"]
        return out

    def serve(self):
        if not self.key:
            if self.command == "GET" and self.parameters.get("list-type") == "2":
                return self.list()
            raise Refused(501, "NotImplemented")
        if self.query and self.command != "GET":
            raise Refused(501, "NotImplemented")
        return getattr(self, "serve_" + self.command.lower(), self.serve_other)()

    def serve_other(self):
        raise Refused(501, "NotImplemented")

    def serve_put(self):
        store, objects = self.server.store, self.server.store.objects
        if len(self.key.encode()) > 1024:
            raise Refused(400, "KeyTooLongError")
        if "x-amz-copy-source" in self.headers:
            return self.copy()
        part, sha, md5 = self.take()
        if self.payload not in ("UNSIGNED-PAYLOAD", sha):
            os.unlink(part)
            raise Refused(400, "XAmzContentSHA256Mismatch")
        try:
            if self.fault.get("do") == "racy":
                self.check(objects.index.get(self.key))
                store.sleep(self.fault.get("s", 0.1))
                head = objects.commit(self.key, part, self.etag(md5), self.meta(), store.now())
            else:
                with objects.lock:
                    self.check(objects.index.get(self.key))
                    head = objects.commit(self.key, part, self.etag(md5), self.meta(), store.now())
        except Refused:
            os.unlink(part)
            raise
        self.after_deed()
        self.answer(200, {} if self.fault.get("do") == "no_etag" else {"ETag": head["etag"]})

    def copy(self):
        objects = self.server.store.objects
        source = urllib.parse.unquote(self.headers["x-amz-copy-source"]).lstrip("/")
        bucket, _, key = source.partition("/")
        if self.payload not in ("UNSIGNED-PAYLOAD", NO_BODY) or bucket != self.server.store.bucket:
            raise Refused(400, "InvalidRequest")
        if self.fault.get("do") == "copy_late":
            return self.answer(200, {"Content-Type": "application/xml"}, b"<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code><Message>late</Message></Error>")
        with objects.lock:
            head, f = objects.open(key)
            if not head:
                raise Refused(404, "NoSuchKey")
            with f:
                self.check(head, "x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match")
                self.check(objects.index.get(self.key))
                f.seek(head["at"])
                part = objects.part()
                with open(part, "wb") as out:
                    shutil.copyfileobj(f, out, PIECE)
            meta = self.meta() if self.headers.get("x-amz-metadata-directive") == "REPLACE" else head["meta"]
            new = objects.commit(self.key, part, head["etag"], meta, self.server.store.now())
        self.after_deed()
        self.answer(200, {"Content-Type": "application/xml"}, f'<?xml version="1.0" encoding="UTF-8"?>\n<CopyObjectResult><ETag>{escape(new["etag"])}</ETag></CopyObjectResult>'.encode())

    def serve_get(self):
        objects, do = self.server.store.objects, self.fault.get("do")
        head, f = objects.before(self.key) if do in ("stale", "stale_body") else (None, None)
        if head and do == "stale_body" and self.key in objects.index:
            head["etag"], head["meta"] = objects.index[self.key]["etag"], objects.index[self.key]["meta"]
        if not head:
            head, f = objects.open(self.key)
        if not head:
            raise Refused(404, "NoSuchKey")
        with f:
            self.check(head, read=True)
            begin, end, status, headers = 0, head["bytes"], 200, self.head_of(head)
            m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if m:
                begin, end = int(m[1]), min(int(m[2] or head["bytes"]) + 1, head["bytes"])
                if begin >= head["bytes"]:
                    raise Refused(416, "InvalidRange")
                status, headers["Content-Range"] = 206, f"bytes {begin}-{end - 1}/{head['bytes']}"
            if self.command == "HEAD":
                self.answered = status
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(end - begin)}.items():
                    self.send_header(name, value)
                return self.end_headers()
            self.answer(status, headers, f=f, n=end - begin, at=head["at"] + begin)

    serve_head = serve_get

    def serve_delete(self):
        objects = self.server.store.objects
        with objects.lock:
            if self.fault.get("do") != "no_delete_condition":
                self.check(objects.index.get(self.key))
            objects.remove(self.key)
        self.after_deed()
        self.answer(204, {})

    def list(self):
        p, objects = self.parameters, self.server.store.objects
        after = base64.urlsafe_b64decode(p["continuation-token"]).decode() if "continuation-token" in p else p.get("start-after", "")
        most, prefix, spell = min(int(p.get("max-keys", 1000)), 1000), p.get("prefix", ""), escape
        if p.get("encoding-type") == "url":
            spell = lambda text: escape(encoded(text, "/"))
        with objects.lock:
            keys = sorted((k for k in objects.index if k.startswith(prefix) and k > after), key=lambda k: k.encode())
            heads = [objects.index[k] for k in keys[:most]]
        out = ['<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
               f"<Name>{self.server.store.bucket}</Name><Prefix>{spell(prefix)}</Prefix><KeyCount>{len(heads)}</KeyCount><MaxKeys>{most}</MaxKeys>",
               f"<IsTruncated>{'true' if len(keys) > most else 'false'}</IsTruncated>"]
        if len(keys) > most:
            out.append(f"<NextContinuationToken>{base64.urlsafe_b64encode(keys[most - 1].encode()).decode()}</NextContinuationToken>")
        for head in heads:
            when = datetime.datetime.fromtimestamp(head["modified"], datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            out.append(f"<Contents><Key>{spell(head['key'])}</Key><LastModified>{when}</LastModified><ETag>{escape(head['etag'], {chr(34): '&quot;'})}</ETag>"
                       f"<Size>{head['bytes']}</Size><StorageClass>STANDARD</StorageClass></Contents>")
        self.answer(200, {"Content-Type": "application/xml"}, "".join([*out, "</ListBucketResult>"]).encode())

    # ---- control ----

    def control(self, path):
        store = self.server.store
        given = json.loads(b"".join(self.pieces()) or b"null")
        with store.lock:
            if path == "/_faults" and self.command in ("PUT", "DELETE"):
                store.faults_now = [dict(f) for f in given or []]
            elif path == "/_log" and self.command == "DELETE":
                store.log.clear()
            elif path == "/_credentials" and self.command == "PUT":
                store.key, store.secret, store.token = given["key"], given["secret"], given.get("token", "")
            elif path == "/_clock" and self.command == "PUT":
                store.ahead_s, store.clock_checked = given["ahead_s"], given.get("checked", True)
            said = {"/_faults": store.faults_now, "/_log": store.log}.get(path)
            if path == "/_objects":
                said = {k: {n: h[n] for n in ("etag", "bytes", "meta", "modified")} for k, h in store.objects.index.items()}
            text = json.dumps(said).encode()
        self.key = "/"  # not in the log
        self.answer(200, {"Content-Type": "application/json"}, text)


class Answered(Gone):
    """The fault's answer was the answer."""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size, allow_reuse_address = True, 256, True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (OSError, Gone)):
            super().handle_error(request, client_address)


class Control:
    """What a test does with a store, whichever process it is in: self.port, self.bucket, self.scheme."""

    @property
    def endpoint(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"s3://{self.bucket}/states"

    @property
    def env(self):
        env = {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": self.region}
        return {**env, "AWS_SESSION_TOKEN": self.token} if self.token else env

    def ask(self, method, path, body=None):
        request = urllib.request.Request(self.endpoint + path, json.dumps(body).encode() if body is not None else None, method=method)
        context = ssl._create_unverified_context() if self.scheme == "https" else None
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)).open(request, timeout=20) as answer:
            return json.loads(answer.read())

    def faults(self, *faults):
        return self.ask("PUT", "/_faults", list(faults))

    def requests(self):
        return self.ask("GET", "/_log")

    def objects_now(self):
        return self.ask("GET", "/_objects")


class StandIn(Control):
    def __init__(self, port=0, directory=None, bucket="states", key="STANDIN", secret="stand+in/secret", token="", region="us-east-1", cert=None):
        self.own = None if directory else tempfile.mkdtemp(prefix="object-stand-in-")
        os.makedirs(directory or self.own, exist_ok=True)
        self.bucket, self.key, self.secret, self.token, self.region = bucket, key, secret, token, region
        self.objects, self.lock, self.stopped = Objects(directory or self.own), threading.Lock(), threading.Event()
        self.faults_now, self.log, self.ahead_s, self.clock_checked, self.scheme = [], [], 0, True, "https" if cert else "http"
        self.server = Server(("127.0.0.1", port), Handler)
        self.server.store, self.port = self, self.server.server_address[1]
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def now(self):
        return time.time() + self.ahead_s

    def sleep(self, seconds):
        self.stopped.wait(seconds)

    def fault_of(self, method, key, is_list):
        with self.lock:
            for f in self.faults_now:
                fits = f.get("method", method) == method and re.search(f.get("key", ""), key) and f.get("list", is_list) == is_list
                if not fits or not f.get("times", 1):
                    continue
                if f.get("after", 0):
                    f["after"] -= 1
                    continue
                f["times"] = f.get("times", 1) - (f.get("times", 1) > 0)
                return f
        return {}

    def note(self, handler):
        if handler.key != "/":
            with self.lock:
                self.log.append({"method": handler.command, "key": handler.key, "query": handler.query, "status": handler.answered, "fault": handler.fault.get("do", ""),
                                 "headers": {k.lower(): v for k, v in handler.headers.items()}, "bytes": [handler.taken, handler.sent], "at": time.time()})
                del self.log[:-20000]

    def close(self):
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()
        if self.own:
            shutil.rmtree(self.own, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Process(Control):
    """One in a process of its own; flags as on the command line. again(): at the same port, after it was killed."""

    def __init__(self, flags):
        self.flags = [str(f) for f in flags]
        options = parser().parse_args(self.flags)
        self.bucket, self.key, self.secret, self.token, self.region = options.bucket, options.key, options.secret, options.token, options.region
        self.scheme, self.port = "https" if options.cert else "http", options.port
        self.again()

    def again(self):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *self.flags, "--port", str(self.port)], stdout=subprocess.PIPE, text=True)
        self.port = int(re.fullmatch(r"listening on (\d+)\n", self.process.stdout.readline())[1])

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    __enter__, __exit__ = StandIn.__enter__, StandIn.__exit__


def start(flags=()):
    return Process(flags)


def parser():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--dir", default=None)
    for name, default in (("bucket", "states"), ("key", "STANDIN"), ("secret", "stand+in/secret"), ("token", ""), ("region", "us-east-1"), ("cert", None)):
        p.add_argument("--" + name, default=default)
    return p


def main():
    o = parser().parse_args()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # a handler that sets an Event may meet the lock of whoever waits for it; before threads begin
    store = StandIn(o.port, o.dir, o.bucket, o.key, o.secret, o.token, o.region, o.cert)
    print(f"listening on {store.port}", flush=True)
    signal.sigwait(ends)
    store.close()


if __name__ == "__main__":
    main()
