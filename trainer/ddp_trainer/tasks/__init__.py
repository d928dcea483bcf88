"""The bundled tasks; they use nothing that a user's own could not."""
