"""Checks of TLS, certificates of clients and bearer tokens, each on a server of its own."""

import ssl
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import tritonclient.grpc as grpc_triton
import tritonclient.http as http_triton
import trustme
from check import Server, check
from common import A, B, fails, pair, same


def headers(token="conformance-token"):
    """Headers with a token, for one call: the client over HTTP writes into what it is given."""
    return {"authorization": f"Bearer {token}"}


@contextmanager
def secured(server, *, clients=False):
    """A server with TLS, and tokens or a CA of clients; files of theirs by name."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / name) for name in
                 ("ca", "cert", "key", "tokens", "client_ca", "client_cert", "client_key")}
        ours, theirs = trustme.CA(), trustme.CA()
        ours.cert_pem.write_to_path(files["ca"])
        theirs.cert_pem.write_to_path(files["client_ca"])
        for authority, name in ((ours, ""), (theirs, "client_")):
            made = authority.issue_cert("127.0.0.1")
            made.cert_chain_pems[0].write_to_path(files[name + "cert"])
            made.private_key_pem.write_to_path(files[name + "key"])
        Path(files["tokens"]).write_text("conformance:conformance-token\n")
        Path(files["tokens"]).chmod(0o600)
        options = ["--tls-cert", files["cert"], "--tls-key", files["key"]]
        known = ("--tls-client-ca", "client_ca") if clients else ("--token-file", "tokens")
        options += [known[0], files[known[1]]]
        own = Server(server.binary, server.folder, "--model-control-mode", "explicit",
                     "--load-model", "add", *options)
        try:
            yield own, files
        finally:
            own.end()


def over_http(own, ca, cert=None, key=None):
    options = {"ca_certs": ca, **({"certfile": cert, "keyfile": key} if cert else {})}
    return http_triton.InferenceServerClient(own.http, ssl=True, ssl_options=options)


def over_grpc(own, ca, cert=None, key=None):
    return grpc_triton.InferenceServerClient(own.grpc, ssl=True, root_certificates=ca,
                                             certificate_chain=cert, private_key=key)


@check
def tls_and_tokens_over_http(server):
    with secured(server) as (own, files):
        client = over_http(own, files["ca"])
        result = client.infer("add", pair(http_triton), headers=headers())
        same(result.as_numpy("OUTPUT0"), A + B)
        assert client.is_server_live() and client.is_server_ready(), "without a token"
        fails(lambda: client.infer("add", pair(http_triton)), status=401, part="bearer token")
        fails(lambda: client.get_model_repository_index(headers=headers("other")), status=401)
        try:
            over_http(own, files["client_ca"]).is_server_live()
        except ssl.SSLError:
            return
        raise AssertionError("a client that trusts somebody else came through")


@check
def tls_and_tokens_over_grpc(server):
    with secured(server) as (own, files):
        client = over_grpc(own, files["ca"])
        result = client.infer("add", pair(grpc_triton), headers=headers())
        same(result.as_numpy("OUTPUT0"), A + B)
        assert client.is_server_live() and client.is_server_ready(), "without a token"
        status = "UNAUTHENTICATED"
        fails(lambda: client.infer("add", pair(grpc_triton)), status=status, part="bearer token")
        fails(lambda: client.get_model_repository_index(headers=headers("other")), status=status)
        fails(over_grpc(own, files["client_ca"]).is_server_live, status="UNAVAILABLE")


@check
def certificates_of_clients_on_both_protocols(server):
    with secured(server, clients=True) as (own, files):
        known = files["ca"], files["client_cert"], files["client_key"]
        result = over_http(own, *known).infer("add", pair(http_triton))
        same(result.as_numpy("OUTPUT0"), A + B)
        result = over_grpc(own, *known).infer("add", pair(grpc_triton))
        same(result.as_numpy("OUTPUT0"), A + B)
        fails(over_grpc(own, files["ca"]).is_server_live, status="UNAVAILABLE")
        try:
            over_http(own, files["ca"]).is_server_live()
        except OSError:
            return
        raise AssertionError("a client without a certificate came through")


@check
def metrics_over_tls_need_a_token(server):
    with secured(server) as (own, files):
        context = ssl.create_default_context(cafile=files["ca"])
        url = f"https://{own.metrics}/metrics"
        ask = urllib.request.Request(url, headers=headers())
        with urllib.request.urlopen(ask, context=context, timeout=20) as answer:
            assert b"nv_inference_count" in answer.read()
        try:
            urllib.request.urlopen(url, context=context, timeout=20)
        except urllib.error.HTTPError as error:
            assert error.code == 401 and error.headers["WWW-Authenticate"].startswith("Bearer")
            return
        raise AssertionError("metrics without a token")
