"""TLS: what is taken, certificates that are exchanged under streams, handshakes that do not go on."""
import os
import socket
import ssl
import subprocess
import time

import pytest

from access import ENDLESS, certificate, certificate_of_time, key_file, served_certificate
from server import SLOWER, command, read_events


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls(own_server, tmp_path):
    """Answers, streams and clients that leave, as on the plain port; the certificate is the one that was given."""
    cert, key = certificate(tmp_path, "one")
    s = own_server("--tls-cert", cert, "--tls-key", key)
    assert s.tls is not None
    s.tls = ssl.create_default_context(cafile=cert)
    assert s.complete(max_tokens=3)["usage"]["completion_tokens"] == 3
    events = s.events("/v1/completions", {"prompt": "Once", "max_tokens": 50})
    assert events[-1].data == "[DONE]"
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert next(read_events(response)).data["choices"]
    connection.sock.close()
    response.close()
    connection.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    with socket.create_connection(("127.0.0.1", s.port)) as plain:  # no TLS: no answer, and nobody else suffers
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(5)
        assert b"HTTP" not in plain.recv(100)
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", s.port)) as old:
        context = ssl._create_unverified_context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.wrap_socket(old)
    assert s.complete(max_tokens=1)
    assert s.stop() == 0


def handshake(s, version, cipher="", signatures=""):
    """What openssl says of its handshake, with nothing too weak for it."""
    ask = ["openssl", "s_client", "-connect", f"{s.host}:{s.port}", f"-{version}", *(["-sigalgs", signatures] if signatures else []),
           *(["-ciphersuites", cipher] if version == "tls1_3" else ["-cipher", f"{cipher or 'ALL'}:@SECLEVEL=0"])]
    done = subprocess.run(ask, input="", capture_output=True, text=True, timeout=20 * SLOWER)
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_tls_12_has_neither_static_rsa_nor_sha1(own_server, tmp_path, kind):
    """The key of the certificate alone opens nothing that was recorded; what is too old is told so in the handshake."""
    cert, key = certificate(tmp_path, "one", ["rsa:2048"]) if kind == "rsa" else certificate(tmp_path, "one")
    s = own_server("--device", "null", "--tls-cert", cert, "--tls-key", key)
    auth = "RSA" if kind == "rsa" else "ECDSA"
    for cipher in (f"ECDHE-{auth}-AES128-GCM-SHA256", f"ECDHE-{auth}-AES256-GCM-SHA384", f"ECDHE-{auth}-CHACHA20-POLY1305"):
        said = handshake(s, "tls1_2", cipher)
        assert f"Cipher is {cipher}" in said and "Protocol  : TLSv1.2" in said, said
    for cipher in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"):
        assert f"TLSv1.3, Cipher is {cipher}" in handshake(s, "tls1_3", cipher)
    good = f"ECDHE-{auth}-AES128-GCM-SHA256"
    assert f"Cipher is {good}" in handshake(s, "tls1_2", good, f"{auth}+SHA256")
    old = {(cipher, ""): None for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-SHA", "AES256-SHA", "AES128-SHA256", "AES128-CCM",
                                             "DHE-RSA-AES128-SHA", f"ECDHE-{auth}-AES128-SHA", f"ECDHE-{auth}-AES256-SHA", "kRSA", "SHA1")}
    for cipher, signatures in [*old, (good, f"{auth}+SHA1")]:
        said = handshake(s, "tls1_2", cipher, signatures)
        assert "Cipher is (NONE)" in said and "alert handshake failure" in said, f"{cipher} {signatures}: {said}"
    for version in ("tls1_1", "tls1"):
        said = handshake(s, version)
        assert "Cipher is (NONE)" in said and "alert protocol version" in said, f"{version}: {said}"
    assert s.get("/health").status == 200


def test_tls_certificates_are_exchanged_under_streams(own_server, tmp_path):
    """Renewed files and SIGHUP: the stream goes on, the next handshake sees the new one; a broken file changes nothing."""
    cert, key = certificate(tmp_path, "one")
    s = own_server("--tls-cert", cert, "--tls-key", key)
    first = served_certificate(s)
    assert first.strip() == cert.read_text().strip()
    connection, response = s.open("POST", "/v1/completions", {**ENDLESS, "max_tokens": 4000 // SLOWER})
    events = read_events(response)
    next(events)
    new_cert, new_key = certificate(tmp_path, "two")
    os.replace(new_cert, cert)
    assert "settings stay" in s.reload()  # the certificate is new, its key is still the old one's
    assert served_certificate(s) == first
    os.replace(new_key, key)
    assert "settings taken over" in s.reload()
    assert served_certificate(s).strip() == cert.read_text().strip()
    assert list(events)[-1].data == "[DONE]"
    connection.close()
    cert.write_text("no certificate")
    assert "settings stay" in s.reload()
    assert s.complete(max_tokens=1)


def test_a_handshake_goes_on_with_the_certificate_that_it_was_shown(own_server, tmp_path):
    """However many came after it meanwhile, and were freed, until the client speaks for the second time."""
    cert, key = certificate(tmp_path, "one", ["rsa:2048"])
    s = own_server("--tls-cert", cert, "--tls-key", key)
    context = ssl._create_unverified_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    shaking = []
    for _ in range(8):
        here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls, plug = context.wrap_bio(here, there), socket.create_connection((s.host, s.port))
        plug.settimeout(20 * SLOWER)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        plug.sendall(there.read())
        here.write(plug.recv(65536))  # the certificate
        shaking.append((tls, plug, here, there))
    for _ in range(6):
        assert "settings taken over" in s.reload()
    n_done = 0
    for tls, plug, here, there in shaking:
        got = b"more"
        while got:
            try:
                tls.do_handshake()
                n_done += 1
                break
            except ssl.SSLWantReadError:
                plug.sendall(there.read())
                got = plug.recv(65536)
                here.write(got)
        plug.close()
    assert n_done == len(shaking), f"{n_done} of {len(shaking)}"
    assert s.complete(max_tokens=1) and s.stop() == 0


def test_a_handshake_that_does_not_go_on_is_dropped(own_server, tmp_path):
    cert, key = certificate(tmp_path, "one")
    s = own_server("--tls-cert", cert, "--tls-key", key, "--idle-timeout-ms", 1000)
    silent = [socket.create_connection((s.host, s.port)) for _ in range(3)]
    silent[1].sendall(b"\x16\x03\x01")  # the beginning of a ClientHello
    silent[2].sendall(b"\x16\x03\x01\x01\x00" + bytes(100))
    began = time.monotonic()
    for c in silent:
        c.settimeout(60)
        try:
            while c.recv(100):  # an alert may come before the end
                pass
        except ConnectionResetError:
            pass
    assert time.monotonic() - began < 50
    assert s.complete(max_tokens=1)


@pytest.mark.parametrize("spoil", ["cert", "key", "other key"])
def test_a_bad_certificate_ends_the_start(tmp_path, spoil):
    cert, key = certificate(tmp_path, "one")
    if spoil == "other key":
        key = certificate(tmp_path, "two")[1]
    else:
        (cert if spoil == "cert" else key).write_text("nothing")
    done = command("serve", "--port", 0, "--tls-cert", cert, "--tls-key", key)
    assert done.returncode == 2 and "tls_" in done.stderr and str(tmp_path) in done.stderr, done


def test_a_certificate_out_of_its_time_is_taken_with_a_warning(own_server, tmp_path):
    """At the start and at SIGHUP; and one that others may read the key of."""
    old = certificate_of_time(tmp_path, "old", "20200101000000Z", "20210102030405Z")
    early = certificate_of_time(tmp_path, "early", "20900101000000Z", "20910101000000Z")
    now, keys = certificate(tmp_path, "now"), key_file(tmp_path, "one\n")
    log = own_server("--tls-cert", old[0], "--tls-key", old[1]).log()
    assert f"{old[0]}: certificate 1 of 1 is valid only until 2021-01-02T03:04:05Z" in log, log
    s = own_server("--tls-cert", now[0], "--tls-key", now[1], "--api-key-file", keys, key="one")
    s.reload()
    assert "valid only" not in s.log() and "chmod" not in s.log(), s.log()
    os.replace(early[0], now[0])
    os.replace(early[1], now[1])
    now[1].chmod(0o640)
    keys.chmod(0o604)
    assert "settings taken over" in s.reload()
    s.wait_log(f"{now[0]}: certificate 1 of 1 is valid only from 2090-01-01T00:00:00Z")
    assert f"tls_key: others may read or change {now[1]} (mode 640)" in s.log(), s.log()
    assert f"api_key_file: others may read or change {keys} (mode 604)" in s.log(), s.log()
