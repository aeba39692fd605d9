"""Whether the server of this container is ready: ends with status 0 or 1. Usage: health.py [PORT]."""

import http.client
import ssl
import sys

TIMEOUT_S = 2.0


def is_ready(port: int) -> bool:
    """Ask `/v2/health/ready`, which needs no token: in plain HTTP, and where that is not spoken over TLS, whoever the certificate is for.

    A server that wants certificates of its callers is asked by another check: `docker run --health-cmd`, with `emberline probe`.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is asked for by an address of this container alone
    for connection in (
        http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context),
    ):
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return False
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    sys.exit(not is_ready(int(sys.argv[1]) if len(sys.argv) > 1 else 8000))
