"""`noetl chaos`: run a playbook again and again while services are killed, and compare what came of it."""
