"""The forms of other services' APIs, each a translation to what OpenAI's form is translated to."""
