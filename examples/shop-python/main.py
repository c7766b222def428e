"""The program: python3 main.py work | place ORDER | pay ORDER. See README.md."""
import logging
import os
import sys
import urllib.error
import urllib.request

from duestream import Client, Worker
from shop import PartnerRefused, Shop

URL = os.environ.get("SHOP_REDIS", "redis://127.0.0.1:6379")
PARTNER = os.environ.get("SHOP_PARTNER", "http://127.0.0.1:8081/orders/")


def mail(order: str, text: str) -> None:
    print("mail for order", order, "-", text, flush=True)


def call_partner(order: str) -> None:
    try:
        urllib.request.urlopen(PARTNER + order, data=b"", timeout=10).close()
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500 and error.code not in (408, 429):
            raise PartnerRefused(f"the partner answered {error.code}") from error
        raise


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    with Client(URL) as client:
        shop = Shop(os.environ.get("SHOP_DATABASE", "shop.db"), client, mail, call_partner)
        if sys.argv[1:] == ["work"]:
            Worker(URL, group="shop", mux=shop.mux(), handler_timeout=30).run()
        elif len(sys.argv) == 3 and sys.argv[1] == "place":
            shop.place(sys.argv[2])
        elif len(sys.argv) == 3 and sys.argv[1] == "pay":
            print("paid" if shop.pay(sys.argv[2]) else "there is no such order, or it was closed")
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
