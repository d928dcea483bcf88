module ddp-trainer.local/bare

go 1.26.0
