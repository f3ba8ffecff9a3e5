"""The phrase book of the corpus: kinds of things, what can be said, asked and told about them.

In: nothing. Out: `KINDS`, a table that `corpus.py` fills with invented names and values.
Documents use `says`, prompts use `asks`, answers use `tell`: the three share few words on purpose,
so that an answer copies the value from its context and rephrases what stands around it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One thing that can be known about an entity; `{e}` is the entity, `{v}` the value."""

    value: str
    """Which generator of `corpus.World` makes the value."""
    says: tuple[str, ...]
    """Ways in which a document or a message states it."""
    asks: tuple[str, ...]
    """Ways to ask for it."""
    tell: str
    """The one way in which answers tell it."""


@dataclass(frozen=True)
class Kind:
    """A kind of entity: how it is called in full (`{n}` is a name), in short, and its attributes.

    The order of the attributes is the order in which summaries tell them.
    """

    full: str
    short: str
    attributes: tuple[Attribute, ...]


def _attribute(value: str, says: str, asks: str, tell: str) -> Attribute:
    """Splits alternatives at `|`, which keeps the table below readable."""
    return Attribute(value, tuple(says.split("|")), tuple(asks.split("|")), tell)


KINDS: tuple[Kind, ...] = (
    Kind(
        "the {n} ferry",
        "the ferry",
        (
            _attribute(
                "org",
                "the company behind {e} is {v}|{v} took over {e} last year|{v} is in charge of {e}",
                "who runs {e}|which company operates {e}",
                "{e} is run by {v}",
            ),
            _attribute(
                "time",
                "the first crossing of {e} starts at {v}|every day {e} casts off at {v}"
                "|passengers of {e} must be on board by {v}",
                "when does {e} leave|what is the departure time of {e}",
                "{e} leaves at {v}",
            ),
            _attribute(
                "place",
                "{e} ties up at {v}|look for {e} at {v}|boarding for {e} is at {v}",
                "where does {e} depart from|from which place does {e} sail",
                "{e} departs from {v}",
            ),
            _attribute(
                "money",
                "one seat on {e} is sold for {v}|travellers pay {v} on {e}|the fare of {e} is {v}",
                "how much is a ticket for {e}|what does a trip with {e} cost",
                "a ticket for {e} costs {v}",
            ),
            _attribute(
                "cause",
                "last week {v} kept {e} in port|because of {v} there were no trips of {e} on Monday"
                "|{e} stood still for a day after {v}",
                "why was {e} cancelled|what stopped {e}",
                "{e} was cancelled because of {v}",
            ),
        ),
    ),
    Kind(
        "the {n} Museum",
        "the museum",
        (
            _attribute(
                "person",
                "since spring {v} has been the head of {e}|{v} was chosen to lead {e}"
                "|the new director of {e} is called {v}",
                "who leads {e}|who is the director of {e}",
                "{e} is led by {v}",
            ),
            _attribute(
                "things",
                "{e} is proud of {v}|visitors come to {e} to look at {v}|the rooms of {e} hold {v}",
                "what does {e} show|what can people see at {e}",
                "{e} shows {v}",
            ),
            _attribute(
                "time",
                "the doors of {e} are unlocked at {v}|guests may enter {e} from {v}"
                "|the day at {e} begins at {v}",
                "when does {e} open|what is the opening time of {e}",
                "{e} opens at {v}",
            ),
            _attribute(
                "money",
                "adults pay {v} to get into {e}|a day at {e} is {v}|the fee of {e} was set to {v}",
                "what is the price of entry to {e}|how much does {e} charge",
                "entry to {e} costs {v}",
            ),
            _attribute(
                "place",
                "{e} stands at {v}|{e} moved to {v}|you will find {e} at {v}",
                "where is {e}|what is the address of {e}",
                "{e} is located at {v}",
            ),
        ),
    ),
    Kind(
        "the {n} lamp",
        "the lamp",
        (
            _attribute(
                "org",
                "engineers at {v} built {e}|{e} comes from the workshop of {v}"
                "|{v} has announced {e}",
                "who makes {e}|which company makes {e}",
                "{e} is made by {v}",
            ),
            _attribute(
                "money",
                "shops ask {v} for {e}|the price tag of {e} reads {v}|{e} is sold for {v}",
                "how much is {e}|what does {e} cost",
                "{e} costs {v}",
            ),
            _attribute(
                "hours",
                "the battery of {e} lasts {v}|{e} shines for {v} without a cable"
                "|after {v} the user has to charge {e}",
                "how long does {e} run|what is the battery life of {e}",
                "{e} runs for {v} on one charge",
            ),
            _attribute(
                "date",
                "shops will get {e} on {v}|sales of {e} start on {v}|{v} is the launch day of {e}",
                "when can people buy {e}|from which day is {e} on sale",
                "{e} is available from {v}",
            ),
            _attribute(
                "thing",
                "buyers of {e} also get {v}|in the box of {e} there is {v}|{e} is packed with {v}",
                "what comes with {e}|what is included with {e}",
                "{e} comes with {v}",
            ),
        ),
    ),
    Kind(
        "the {n} Festival",
        "the festival",
        (
            _attribute(
                "date",
                "{v} was fixed as the day of {e}|the gates of {e} open on {v}"
                "|people should keep {v} free for {e}",
                "on which day is {e}|what is the date of {e}",
                "{e} takes place on {v}",
            ),
            _attribute(
                "place",
                "the town gave {v} to {e}|the stage of {e} is built at {v}"
                "|{e} fills {v} with music",
                "where is {e} held|what is the venue of {e}",
                "{e} is held at {v}",
            ),
            _attribute(
                "person",
                "the star of {e} is {v}|{v} will sing at the end of {e}"
                "|many fans come to {e} to hear {v}",
                "who is the main guest of {e}|which guest appears at {e}",
                "the main guest of {e} is {v}",
            ),
            _attribute(
                "money",
                "a pass for {e} is {v}|the entrance to {e} is sold at {v}|visitors of {e} pay {v}",
                "how much is a ticket for {e}|what does a visit to {e} cost",
                "a ticket for {e} costs {v}",
            ),
            _attribute(
                "org",
                "the bills of {e} are paid by {v}|without money from {v} people would miss {e}"
                "|{v} gives its support to {e}",
                "who is the sponsor of {e}|which company pays for {e}",
                "{e} is sponsored by {v}",
            ),
        ),
    ),
    Kind(
        "the {n} plant",
        "the plant",
        (
            _attribute(
                "cause",
                "inspectors of {e} found {v}|the trouble at {e} began with {v}"
                "|all machines of {e} stopped after {v}",
                "what was the cause of the failure at {e}|why did {e} fail",
                "{e} failed because of {v}",
            ),
            _attribute(
                "time",
                "the alarm at {e} rang at {v}|at {v} the lights of {e} went out"
                "|workers of {e} heard a loud noise at {v}",
                "at what time did {e} stop|when did the failure of {e} start",
                "the failure of {e} started at {v}",
            ),
            _attribute(
                "person",
                "{v} was the first to notice it at {e}|the night shift of {e} was led by {v}"
                "|a call from {v} warned the people at {e}",
                "who reported the failure of {e}|who raised the alarm at {e}",
                "the failure of {e} was reported by {v}",
            ),
            _attribute(
                "money",
                "the bill for {e} came to {v}|the owners of {e} must spend {v}"
                "|new parts for {e} are worth {v}",
                "how much did the repair of {e} cost|what was paid to fix {e}",
                "the repair of {e} cost {v}",
            ),
            _attribute(
                "date",
                "{e} should be back to normal on {v}|engineers want to start {e} again on {v}"
                "|until {v} nothing moves at {e}",
                "when will {e} work again|on which day will {e} restart",
                "{e} will restart on {v}",
            ),
        ),
    ),
    Kind(
        "the {n} project",
        "the project",
        (
            _attribute(
                "person",
                "{v} was put in charge of {e}|the head of {e} is {v}|{v} steers {e} from now on",
                "who manages {e}|who is the manager of {e}",
                "{e} is managed by {v}",
            ),
            _attribute(
                "things",
                "the team of {e} works on {v}|the goal of {e} is to deliver {v}"
                "|customers expect {v} from {e}",
                "what does {e} build|what is the result of {e}",
                "{e} builds {v}",
            ),
            _attribute(
                "date",
                "the deadline of {e} is {v}|all work on {e} has to be over by {v}"
                "|the board expects the end of {e} on {v}",
                "when must {e} be finished|what is the due date of {e}",
                "{e} is due on {v}",
            ),
            _attribute(
                "money",
                "the board gave {v} to {e}|{e} may spend up to {v}|{v} was set aside for {e}",
                "what is the budget of {e}|how much money does {e} have",
                "{e} has a budget of {v}",
            ),
            _attribute(
                "cause",
                "there was {v} which slowed {e} down"
                "|since {v} the team of {e} has been behind its plan"
                "|the biggest worry of {e} is {v}",
                "why is {e} late|what delayed {e}",
                "{e} is delayed by {v}",
            ),
        ),
    ),
    Kind(
        "the {n} workshop",
        "the workshop",
        (
            _attribute(
                "time",
                "please be at {e} by {v}|we kick off {e} at {v}|the clock for {e} is set to {v}",
                "when does {e} begin|what is the start time of {e}",
                "{e} begins at {v}",
            ),
            _attribute(
                "place",
                "I booked {v} for {e}|we will meet at {v} for {e}|the venue of {e} changed to {v}",
                "where is {e}|which place was chosen for {e}",
                "{e} is located at {v}",
            ),
            _attribute(
                "person",
                "{v} agreed to guide us through {e}|the speaker of {e} is {v}|{v} prepares {e}",
                "who hosts {e}|who is the host of {e}",
                "{e} is hosted by {v}",
            ),
            _attribute(
                "things",
                "in {e} we will talk about {v}|the topic of {e} is {v}|{e} deals with {v}",
                "what is {e} about|what is discussed in {e}",
                "{e} is about {v}",
            ),
            _attribute(
                "thing",
                "do not forget {v} for {e}|everyone needs {v} at {e}|for {e} please carry {v}",
                "what should people bring to {e}|what is needed for {e}",
                "everyone should bring {v} to {e}",
            ),
        ),
    ),
    Kind(
        "order {c}",
        "the order",
        (
            _attribute(
                "things",
                "the box of {e} is filled with {v}|with {e} the customer bought {v}"
                "|{e} was placed for {v}",
                "what is in {e}|what does {e} contain",
                "{e} contains {v}",
            ),
            _attribute(
                "org",
                "{v} picked up {e} this morning|we gave {e} to {v}|the driver of {v} carries {e}",
                "who delivers {e}|which courier has {e}",
                "{e} is delivered by {v}",
            ),
            _attribute(
                "date",
                "{e} should reach the customer on {v}|the promised day for {e} is {v}"
                "|expect {e} at the door on {v}",
                "when does {e} arrive|what is the delivery date of {e}",
                "{e} arrives on {v}",
            ),
            _attribute(
                "money",
                "the invoice of {e} says {v}|the customer paid {v} for {e}|{e} is worth {v}",
                "what is the total of {e}|how much was charged for {e}",
                "the total of {e} is {v}",
            ),
            _attribute(
                "place",
                "{e} is waiting at {v}|the label of {e} names {v}|please bring {e} to {v}",
                "where does {e} go|what is the address of {e}",
                "{e} goes to {v}",
            ),
        ),
    ),
    Kind(
        "the {n} Inn",
        "the inn",
        (
            _attribute(
                "person",
                "{v} bought {e} from an uncle|the keys of {e} belong to {v}"
                "|{v} has been the landlord of {e} for years",
                "who owns {e}|who is the owner of {e}",
                "{e} is owned by {v}",
            ),
            _attribute(
                "place",
                "{e} looks out on {v}|guests reach {e} through {v}"
                "|the walls of {e} rise beside {v}",
                "where is {e}|what is the address of {e}",
                "{e} is located at {v}",
            ),
            _attribute(
                "money",
                "a bed at {e} is {v}|guests of {e} pay {v}|the rate of {e} went up to {v}",
                "how much is a night at {e}|what does a room at {e} cost",
                "a night at {e} costs {v}",
            ),
            _attribute(
                "time",
                "the kitchen of {e} starts at {v}|coffee and bread are ready at {e} by {v}"
                "|from {v} the tables of {e} are set",
                "when is breakfast at {e}|at what time does {e} serve breakfast",
                "breakfast at {e} is served at {v}",
            ),
            _attribute(
                "things",
                "people love {e} for {v}|{e} is famous for {v}|the pride of {e} is {v}",
                "what is {e} known for|what makes {e} special",
                "{e} is known for {v}",
            ),
        ),
    ),
    Kind(
        "the {n} Bridge",
        "the bridge",
        (
            _attribute(
                "person",
                "{v} drew the plans of {e}|the drawings of {e} were signed by {v}"
                "|{e} is the work of {v}",
                "who designed {e}|who is the architect of {e}",
                "{e} was designed by {v}",
            ),
            _attribute(
                "metres",
                "from end to end {e} measures {v}|{e} spans {v}|walkers on {e} cover {v}",
                "how long is {e}|what is the length of {e}",
                "{e} is {v} long",
            ),
            _attribute(
                "date",
                "the first cars may use {e} on {v}|the mayor will cut the ribbon of {e} on {v}"
                "|the public must wait for {e} until {v}",
                "when does {e} open|what is the opening day of {e}",
                "{e} opens on {v}",
            ),
            _attribute(
                "money",
                "the city paid {v} for {e}|{v} went into {e}|the bill of {e} reached {v}",
                "how much was spent on {e}|what was the price of {e}",
                "{e} cost {v}",
            ),
            _attribute(
                "org",
                "the steel of {e} came from {v}|workers of {v} put up {e}"
                "|{v} won the contract for {e}",
                "who built {e}|which company built {e}",
                "{e} was built by {v}",
            ),
        ),
    ),
)
