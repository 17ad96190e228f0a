"""What tests of access share: a request that does not end by itself, a file of keys, certificates made now."""
import ssl
import subprocess

ENDLESS = {"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": True}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def key_file(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return path


def certificate(folder, name, key_type=("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")):
    """A self-signed pair made now: (certificate, key)."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", *key_type, "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key


def certificate_of_time(folder, name, begin, end):
    """The same, valid between two times, YYYYMMDDHHMMSSZ."""
    cert, key = certificate(folder, name)
    (folder / "ca.cnf").write_text("[ca]\ndefault_ca=d\n[d]\ndatabase=ca.idx\nrand_serial=yes\nnew_certs_dir=.\ndefault_md=sha256\n"
                                   "policy=p\nunique_subject=no\n[p]\ncommonName=supplied\n")
    (folder / "ca.idx").write_text("")
    subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", "csr"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", "ca.cnf", "-selfsign", "-keyfile", key, "-in", "csr", "-out", cert,
                    "-startdate", begin, "-enddate", end], cwd=folder, check=True, capture_output=True)
    return cert, key


def served_certificate(s):
    return ssl.get_server_certificate(("127.0.0.1", s.port))
