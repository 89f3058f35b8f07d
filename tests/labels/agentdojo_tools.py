"""Labels for the tools of AgentDojo's four suites: one line each, with the reason.

`gives` and `acts` contain what a person who connects such a tool would write from its description alone. Nothing here comes
from a task, an attack, or a value of the data. `SINKS_ONLY` is the table without its sources: the origin of results is
undeclared, which makes all of them untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openagentic_sdk.tools.labels import ToolLabels


class DojoLabels(NamedTuple):
    """A tool's declared effect, its labels, and the reason."""

    effect: str
    labels: ToolLabels
    why: str


def gives(why: str, source: str = "untrusted", fields: Sequence[str] = ()) -> DojoLabels:
    """A tool that only reads the user's own systems and passes its arguments to nobody else."""
    return DojoLabels("read", ToolLabels(source, fields, control=(), sink=False), why)  # type: ignore[arg-type]


def acts(why: str, *control: str, sink: bool = True, effect: str = "unsafe") -> DojoLabels:
    """A tool that changes something or sends something out."""
    return DojoLabels(effect, ToolLabels(control=control, sink=sink), why)


# Fields of a payment that the bank itself records. Elsewhere `fields` are ids, names and accounts issued by the service.
PAYMENT = ("*.id", "*.amount", "*.sender", "*.recipient")
# fmt: off
TOOLS: Mapping[str, DojoLabels] = {
    # mail, calendar and drive
    "send_email": acts("its recipients decide who learns it", "recipients", "cc", "bcc"),
    "delete_email": acts("which mail is lost", "email_id"),
    "get_unread_emails": gives("anybody can write a mail"),
    "get_sent_emails": gives("a sent mail may quote anybody"),
    "get_received_emails": gives("anybody can write a mail"),
    "get_draft_emails": gives("a draft may quote anybody"),
    "search_emails": gives("anybody can write a mail"),
    "search_contacts_by_name": gives("the user keeps the address book", "trusted"),
    "search_contacts_by_email": gives("the user keeps the address book", "trusted"),
    "get_current_day": gives("the clock of the machine", "trusted"),
    "search_calendar_events": gives("others write invitations", fields=("*.id_", "*.participants")),
    "get_day_calendar_events": gives("others write invitations", fields=("*.id_", "*.participants")),
    "create_calendar_event": acts("everybody invited gets a mail", "participants"),
    "cancel_calendar_event": acts("which event is lost; the invited get a mail", "event_id"),
    "reschedule_calendar_event": acts("moves an event of one's own calendar, which can be moved back", sink=False),
    "add_calendar_event_participants": acts("everybody invited gets a mail", "participants"),
    "append_to_file": acts("adds to a file of one's own drive, which keeps what it had", sink=False),
    "search_files_by_filename": gives("others share files", fields=("*.id_", "*.filename")),
    "create_file": acts("where on the drive it goes", "filename"),
    "delete_file": acts("which file is lost", "file_id"),
    "get_file_by_id": gives("others share files"),
    "list_files": gives("others share files", fields=("*.id_", "*.filename", "*.size", "*.owner")),
    "share_file": acts("who may read it from now on", "email"),
    "search_files": gives("others share files", fields=("*.id_", "*.filename")),
    # travel: the content of booking sites, including reviews by strangers
    "get_user_information": gives("the user's own profile", "trusted"),
    "get_all_hotels_in_city": gives("a site lists what others enter"),
    "get_hotels_prices": gives("a site lists what others enter"),
    "get_rating_reviews_for_hotels": gives("anybody can write a review"),
    "get_hotels_address": gives("a site lists what others enter"),
    "get_all_restaurants_in_city": gives("a site lists what others enter"),
    "get_cuisine_type_for_restaurants": gives("a site lists what others enter"),
    "get_restaurants_address": gives("a site lists what others enter"),
    "get_rating_reviews_for_restaurants": gives("anybody can write a review"),
    "get_dietary_restrictions_for_all_restaurants": gives("a site lists what others enter"),
    "get_contact_information_for_restaurants": gives("a site lists what others enter"),
    "get_price_for_restaurants": gives("a site lists what others enter"),
    "check_restaurant_opening_hours": gives("a site lists what others enter"),
    "get_all_car_rental_companies_in_city": gives("a site lists what others enter"),
    "get_car_types_available": gives("a site lists what others enter"),
    "get_rating_reviews_for_car_rental": gives("anybody can write a review"),
    "get_car_fuel_options": gives("a site lists what others enter"),
    "get_car_rental_address": gives("a site lists what others enter"),
    "get_car_price_per_day": gives("a site lists what others enter"),
    "get_flight_information": gives("a site lists what others enter"),
    "reserve_hotel": acts("who gets the booking", "hotel"),
    "reserve_car_rental": acts("who gets the booking", "company"),
    "reserve_restaurant": acts("who gets the booking", "restaurant"),
    # bank
    "get_iban": gives("the user's own account", "trusted"),
    "get_balance": gives("the user's own account", "trusted"),
    "get_user_info": gives("the user's own profile", fields=("first_name", "last_name", "street", "city")),
    "get_most_recent_transactions": gives("others write subjects", fields=PAYMENT),
    "get_scheduled_transactions": gives("others write subjects", fields=PAYMENT),
    "read_file": gives("a bill is written by whoever sends it"),
    "send_money": acts("who gets how much", "recipient", "amount"),
    "schedule_transaction": acts("who gets how much", "recipient", "amount"),
    "update_scheduled_transaction": acts("which payment changes, and who gets how much", "id", "recipient", "amount"),
    "update_password": acts("who can log in", "password"),
    "update_user_info": acts("a profile of name and address decides nothing about money"),
    # chat and web
    "get_channels": gives("whoever makes a channel names it", fields=("*",)),
    "get_users_in_channel": gives("people choose their names", fields=("*",)),
    "read_channel_messages": gives("anybody in a channel can write", fields=("*.sender",)),
    "read_inbox": gives("anybody can write a message"),
    "add_user_to_channel": acts("who reads which channel", "channel", "user"),
    "send_direct_message": acts("who gets it", "recipient"),
    "send_channel_message": acts("where it can be read", "channel"),
    "invite_user_to_slack": acts("who comes in", "user", "user_email"),
    "remove_user_from_slack": acts("who is put out", "user"),
    "get_webpage": acts("the address itself tells its server something", "url", effect="read"),
    "post_webpage": acts("where it is put", "url"),
}
# fmt: on
SINKS_ONLY: Mapping[str, DojoLabels] = {
    name: row._replace(labels=ToolLabels(control=row.labels.control, sink=row.labels.sink))
    for name, row in TOOLS.items()
}
