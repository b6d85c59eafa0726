"""TLS of the listening socket: its certificate, and the authority that certifies clients."""

import ssl
from dataclasses import dataclass

from actors.core.config import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """Files as PEM. `cert_reqs` is what clients' certificates are: 0 not asked for, 1 checked, 2 required."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0

    @classmethod
    def of(
        cls, keyfile: str | None, certfile: str | None, ca_certs: str | None, cert_reqs: int
    ) -> "Tls | None":
        """Return None where nothing asks for TLS; raises ConfigError for half of what it needs."""
        if certfile is None:
            for name, given in (("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
                if given is not None:
                    raise ConfigError(f"{name} is {given}, but there is no certificate: give --ssl-certfile")
            if cert_reqs:
                raise ConfigError(f"--ssl-cert-reqs is {cert_reqs} without TLS: give --ssl-certfile")
            return None
        if cert_reqs and ca_certs is None:
            raise ConfigError(
                f"--ssl-cert-reqs is {cert_reqs}, but nobody certifies clients: give --ssl-ca-certs"
            )
        return cls(certfile, keyfile, ca_certs, cert_reqs)

    def context(self) -> ssl.SSLContext:
        """Return the context of connections; raises ConfigError that names the option and the file."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password, a key that has one would be asked for on the terminal.
            context.load_cert_chain(self.certfile, self.keyfile, lambda: "")
        except (OSError, ValueError) as error:
            key = "" if self.keyfile is None else f" and --ssl-keyfile {self.keyfile}"
            wrong = _why(error, "they are no certificate in PEM and the key to it, without a password")
            raise ConfigError(f"--ssl-certfile {self.certfile}{key}: {wrong}") from None
        if self.ca_certs is not None:
            try:
                context.load_verify_locations(self.ca_certs)
            except (OSError, ValueError) as error:
                wrong = _why(error, "it holds no certificate in PEM")
                raise ConfigError(f"--ssl-ca-certs {self.ca_certs}: {wrong}") from None
        context.verify_mode = ssl.VerifyMode(self.cert_reqs)
        return context


def _why(error: OSError | ValueError, otherwise: str) -> str:
    is_file = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    return (error.strerror if is_file and isinstance(error, OSError) else None) or otherwise
