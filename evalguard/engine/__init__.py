"""Who answers: units of work, the score cache, lockstep, references, memory, servers."""
