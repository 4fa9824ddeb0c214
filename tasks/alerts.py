"""Alerts that a person must hear of, sent to where people listen."""

from __future__ import annotations

import json
import logging

from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
WEBHOOK_TIMEOUT_S = 10.0


def post(alert: str) -> None:
    """Send an alert to the webhook, if one is set; a webhook that is away must not stop the monitor."""
    import http.client
    import urllib.request

    LOGGER.warning("alert: %s", alert)
    secret = load_settings().alert_webhook_url
    if secret is None:
        return
    url = secret.get_secret_value()
    if not url.startswith(("http://", "https://")):
        LOGGER.error("the alert webhook's address is no http address, so nobody was told")
        return
    body = json.dumps({"source": "warpgauge", "alert": alert}).encode()
    try:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S).close()
    except OSError as error:
        LOGGER.error("the alert webhook did not take the alert: %s", error)
    except (ValueError, http.client.HTTPException) as error:
        # Their text may hold the address, which is a secret.
        LOGGER.error("the alert webhook did not take the alert: %s", type(error).__name__)
