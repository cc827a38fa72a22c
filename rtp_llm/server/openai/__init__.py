"""The endpoints of the OpenAI protocol: what they take and what they answer."""
