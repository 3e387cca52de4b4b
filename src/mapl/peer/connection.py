"""How zenoh is set up for a peer: QUIC with mutual TLS, whom it dials, and who may do what here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mapl.peer.identity import Identity
from mapl.peer.settings import NetSection

DIALLING = 3000
"""Milliseconds after which dialling somebody is given up, until the next try. A connection that dials somebody who is
not there takes so long to close. By default zenoh takes ten seconds."""


def config(identity: Identity, net: NetSection, members: frozenset[str], limit: int) -> Any:
    """Zenoh's configuration: QUIC with mutual TLS, found as `net` says, and who may write what."""
    import zenoh

    result = zenoh.Config()

    def put(key: str, value: Any) -> None:
        result.insert_json5(key, json.dumps(value))

    put("mode", "peer")
    put("listen/endpoints", [f"quic/{net.listen}"])
    put("connect/endpoints", [f"quic/{address}" for address in net.connect])
    put("connect/retry", {"period_init_ms": 250, "period_max_ms": 2000, "period_increase_factor": 2})
    put("scouting/multicast/enabled", net.discover == "lan")
    put("scouting/gossip/enabled", net.discover != "addresses")
    put("transport/shared_memory/enabled", False)  # on by default: 193 MB per process
    put("transport/unicast/open_timeout", DIALLING)
    put("transport/link/tx/lease", int(1000 * net.lease))
    put("transport/link/rx/max_message_size", limit + 65536)
    # By default a full queue closes the connection after 5 s; here it waits half a second.
    put("transport/link/tx/queue/congestion_control/block/wait_before_close", 500_000)
    put("transport/link/tls", _tls(identity))
    put("access_control", access(identity, members))
    return result


def _tls(identity: Identity) -> dict[str, Any]:
    """Both ends show a certificate. Without mutual TLS or the check of names, strangers would be let in."""

    def text(path: Path) -> str:
        return str(path.resolve())

    return {
        "root_ca_certificate": text(identity.ca_path),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "listen_certificate": text(identity.certificate_path),
        "listen_private_key": text(identity.key_path),
        "connect_certificate": text(identity.certificate_path),
        "connect_private_key": text(identity.key_path),
    }


def access(identity: Identity, members: frozenset[str]) -> dict[str, Any]:
    """Who may do what here: members write under their own names, anybody of the network brings news."""
    prefix = f"mapl/{identity.network_id}"
    others = sorted(members - {identity.name})
    questions = ["declare_subscriber", "query", "liveliness_query", "declare_liveliness_subscriber"]
    own = ["put", "reply", "declare_queryable", "liveliness_token"]

    def rule(name: str, flow: str, keys: str, messages: list[str]) -> dict[str, Any]:
        return {"id": name, "permission": "allow", "flows": [flow], "key_exprs": [keys], "messages": messages}

    rules = [rule(f"of-{name}", "ingress", f"{prefix}/{name}/**", own) for name in others]
    rules.append(rule("questions", "ingress", f"{prefix}/**", questions))
    rules.append(rule("out", "egress", f"{prefix}/**", ["delete", *own, *questions]))
    rules.append(rule("news-in", "ingress", f"{prefix}/*/news", ["put", "declare_subscriber"]))
    rules.append(rule("news-out", "egress", f"{prefix}/*/news", ["put", "declare_subscriber"]))
    subjects: list[dict[str, Any]] = [{"id": f"is-{name}", "cert_common_names": [name]} for name in others]
    policies: list[dict[str, Any]] = [{"rules": [f"of-{name}"], "subjects": [f"is-{name}"]} for name in others]
    if others:
        subjects.append({"id": "members", "cert_common_names": others})
        policies.append({"rules": ["questions", "out"], "subjects": ["members"]})
    else:
        rules = [one for one in rules if one["id"].startswith("news")]
    subjects.append({"id": "anybody"})
    policies.append({"rules": ["news-in", "news-out"], "subjects": ["anybody"]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
